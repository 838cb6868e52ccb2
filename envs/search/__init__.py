"""Search worlds: questions that take several pages to answer, over made or real encyclopedias."""

"""The live web: engines, a page fetcher, and a cassette that plays the same answers again."""

"""The live web: search engines, a page fetcher, and a cassette that records and replays answers."""

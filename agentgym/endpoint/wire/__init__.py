"""Request and response formats of the endpoint's APIs, one module per API."""

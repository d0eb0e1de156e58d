"""nano: the embedded backbone, a small visual retriever that ships inside the package."""

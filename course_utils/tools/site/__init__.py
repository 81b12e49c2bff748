"""The static HTML edition: pages made of the notebooks and documents, set by Sphinx, readable without a server."""

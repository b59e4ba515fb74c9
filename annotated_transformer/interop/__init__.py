"""To and from other systems: the book's translator as a page that needs no server."""

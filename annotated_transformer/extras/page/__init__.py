"""The translator as a page that runs in a browser, without a server."""

"""The emulator's own HTTP server: HTTP/1.1 and HTTP/2 without TLS, on one port."""

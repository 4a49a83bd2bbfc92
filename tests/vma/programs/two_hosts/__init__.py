"""Two hosts (network namespaces), what runs on them, and which way its datagrams went."""

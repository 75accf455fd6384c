"""Stand-ins for implementations, right and wrong, that the harness's tests run in processes of their own."""

"""The Helm chart seen from outside: rendered by Helm itself, and the files that are generated from it."""

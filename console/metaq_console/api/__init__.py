"""The JSON API below ``/v1``: a row for each operation; routing, checks and the OpenAPI document are made from it."""

"""Accounts of clients and their permissions for topics and groups. Independent of protocols."""

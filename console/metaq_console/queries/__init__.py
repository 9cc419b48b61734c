"""Spark queries: known by checkpoint folder or by what their listeners post. The only folder that uses ``metaq_spark``."""

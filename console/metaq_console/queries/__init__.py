"""Spark queries: known by a checkpoint folder, or by what listeners post. Only this folder uses ``metaq_spark``."""

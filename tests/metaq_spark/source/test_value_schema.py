"""Types of JSON values as text: what is read, what is refused, and that Spark reads what is spelt."""

from __future__ import annotations

import re

import pytest
from examples import in_one_test
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from schemas import struct

from metaq_spark.columns.value_schema import parse_value_schema, spell_type


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("id BIGINT, name STRING", struct(id=LongType(), name=StringType())),
        (" Id : bigint ", struct(Id=LongType())),
        ("a tinyint,b BYTE", struct(a=ByteType(), b=ByteType())),
        ("a smallint,b short", struct(a=ShortType(), b=ShortType())),
        ("a int,b integer,c long", struct(a=IntegerType(), b=IntegerType(), c=LongType())),
        ("a float,b real,c double", struct(a=FloatType(), b=FloatType(), c=DoubleType())),
        ("a boolean,b binary,c date", struct(a=BooleanType(), b=BinaryType(), c=DateType())),
        ("a timestamp,b timestamp_ntz", struct(a=TimestampType(), b=TimestampNTZType())),
        ("a decimal,b DEC(5),c numeric( 38 , 38 )", struct(a=DecimalType(), b=DecimalType(5), c=DecimalType(38, 38))),
        ("a ARRAY<INT>", struct(a=ArrayType(IntegerType()))),
        ("a map<string,array<double>>", struct(a=MapType(StringType(), ArrayType(DoubleType())))),
        ("a STRUCT<b: INT, c STRUCT<d:STRING>>", struct(a=struct(b=IntegerType(), c=struct(d=StringType())))),
        ("map INT, struct STRING", struct(map=IntegerType(), struct=StringType())),
        ("`odd name, ``x```` <>` INT", StructType([StructField("odd name, `x`` <>", IntegerType())])),
        ("straße INT, 数 STRING", struct(straße=IntegerType(), 数=StringType())),
        ("STRUCT<a INT>", struct(a=IntegerType())),
        ("array<struct<a: int>>", ArrayType(struct(a=IntegerType()))),
        ("MAP < STRING , INT >", MapType(StringType(), IntegerType())),
    ],
)
def test_types_that_are_read(text: str, kind: DataType) -> None:
    assert parse_value_schema(text) == kind
    again = spell_type(kind)
    assert parse_value_schema(again) == kind


@in_one_test(
    "text, words",
    [
        ("", "expected the name of a field at character 1"),
        ("id", "'the end' at character 3 is no type"),
        ("id BIGNT", "'BIGNT' at character 4 is no type of a JSON value; there are BOOLEAN"),
        ("id INT,", "expected the name of a field at character 8"),
        ("id INT name STRING", "expected ',' or the end at character 8, found 'name'"),
        ("id INT NOT NULL", "expected ',' or the end at character 8, found 'NOT'"),
        ("id INT, ID INT", "field ID is there twice"),
        ("a STRUCT<b INT", "expected ',' or '>' at character 15, found 'the end'"),
        ("a STRUCT<>", "expected the name of a field at character 10"),
        ("a ARRAY", "expected '<' at character 8"),
        ("a MAP<INT, INT>", "the keys of a map in JSON are STRING, at character 7"),
        ("a MAP<STRING>", "expected ',' at character 13"),
        ("ARRAY<INT> x", "expected the end at character 12, found 'x'"),
        ("a DECIMAL(39)", "DECIMAL(39,0): expected 1 to 38 digits"),
        ("a DECIMAL(5,6)", "DECIMAL(5,6)"),
        ("a DECIMAL(x)", "expected a number of digits at character 11, found 'x'"),
        ("a `INT`", "'INT' at character 3 is no type"),
        ("a INTERVAL", "'INTERVAL' at character 3 is no type"),
        ("a VARIANT", "is no type"),
        ("a int; drop", "'; drop' at character 6 belongs to no type"),
        ("a " + "array<" * 60 + "int" + ">" * 60, "nested more than 50 deep"),
    ],
)
def test_types_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_value_schema(text)

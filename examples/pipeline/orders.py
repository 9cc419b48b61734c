"""A declarative pipeline: topic ``orders`` of MetaQ becomes a table, and its large orders go to RocketMQ.

    metaq -c rocketmq://127.0.0.1:10911 create large_orders
    cd examples/pipeline && spark-pipelines run --conf spark.sql.catalogImplementation=hive

It needs ``pip install 'pyspark[pipelines]'``. ``spark-pipeline.yml`` beside it has the addresses, and the folder for
the checkpoints; the catalog keeps the table from run to run. Each run takes what there is, and ends. The sink is
exactly once: a full refresh, which would send everything again, is refused unless its option ``fullRefresh`` is
``write``.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
BROKERS, NAME_SERVERS = spark.conf.get("shop.brokers"), spark.conf.get("shop.nameServers")


def read_orders() -> DataFrame:
    """The orders as columns; what is no order is left out."""
    reader = spark.readStream.format("metaq").options(brokers=BROKERS, subscribe="orders", startingOffsets="earliest")
    reader = reader.options(valueFormat="json", valueSchema="id BIGINT, amount BIGINT", mode="dropmalformed")
    return reader.load().select("value.*", "timestamp")


@dp.table
def orders() -> DataFrame:
    """Every order."""
    return read_orders()


dp.create_sink(
    "to_rocketmq", "rocketmq", {"nameServers": NAME_SERVERS, "topic": "large_orders", "delivery": "exactly_once"}
)


@dp.append_flow(target="to_rocketmq")
def large_orders() -> DataFrame:
    """Orders above 100, as JSON."""
    return read_orders().where("amount > 100").selectExpr("to_json(struct(id, amount)) AS value")

"""The rules in Chinese: what is the case, and the advice. An advice has the same fields as in English."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

CHINESE: Final[Mapping[str, tuple[str, str]]] = {
    "A1": ("已全部读完", "如果应该有消息，请检查生产者：它是否在运行，是否发往这些服务器的 {topics}？"),
    "A2": (
        "只有查询不知道的分区收到消息",
        "把 {partitions} 加入选项 assign；或改用 subscribe，它会自动发现新分区；使用模式时，请确认它匹配完整名称。",
    ),
    "A3": ("有 Broker 拒收消息", "生产者会收到错误：请在 {server} 的磁盘上腾出空间，之后会自动恢复写入。"),
    "A4": (
        "有新消息，但查询一条也没有选中",
        "把查询的过滤条件（messageTypes、tags、sql）与消息的类型 {types} 对比，注意大小写。",
    ),
    "A5": (
        "消息在被查询读取之前已过期删除",
        "这些消息对该查询已经丢失。failOnDataLoss=true 时查询会失败："
        "用 failOnDataLoss=false 启动，从剩下的第一条消息继续；"
        "并把消息保留得比查询可能停顿的时间更久。",
    ),
    "A6": (
        "该分区已不是原来读取的那个",
        "主题是否被删除过，Broker 是否从旧备份恢复，或者这些服务器属于另一个集群？请先纠正；"
        "或用 metaq-spark checkpoint move 移动查询的位置，或用 failOnDataLoss=false 启动。",
    ),
    "B1": ("批次正在运行，用时正常", "无需处理。"),
    "B2": (
        "批次用时远超平常",
        "请查看该批次在做什么：Spark UI 的 Stages 页，或 executor 的线程转储。",
    ),
    "B3": (
        "触发器还没有触发",
        "等待，或给查询更短的间隔（trigger(processingTime=...)）；availableNow 的运行需要重新启动。",
    ),
    "B4": (
        "查询在询问位点，而有服务器没有应答",
        "请检查 {server}：是否在运行，driver 能否连到它，是否过载？它应答后查询会自动继续。",
    ),
    "B5": (
        "没有空闲的核来运行该批次的任务",
        "核被另一个查询或作业占用：给应用更多的核，减少其中的查询，或使用公平调度池。",
    ),
    "B6": (
        "一个分区占了该批次的大部分",
        "{partition} 由少数任务读取，其他任务早已完成：设置 minPartitions 或 maxBytesPerPartition 来切分大分区，"
        "并让生产者把键分散开。",
    ),
    "B7": (
        "任务在等待 Broker",
        "请检查 {server}：是否在运行，磁盘或网络是否繁忙？它应答后任务会自动继续。",
    ),
    "B8": (
        "同一批次反复失败",
        "重启没有用。请处理错误中指出的问题；如果是某条消息无法处理，检查点的批次 {batch} 说明它在哪些位点之间。",
    ),
    "B9": (
        "第一个批次包含了全部消息",
        "等它完成；或删除检查点，用 maxBytesPerTrigger 或更晚的 startingOffsets 重新开始。",
    ),
    "B10": (
        "查询在等待更多消息",
        "如果等得太久，请调低 minOffsetsPerTrigger 或 maxTriggerDelay。"
        "如果两者都没有设置，则查询的选项没有选中等待的消息：请与各分区对比。",
    ),
    "B11": ("没有 driver 在运行，而有消息在等待", "请重新启动查询，并在 driver 的日志中查找它结束的原因。"),
    "B12": ("运行失败", "请处理错误中指出的问题，再启动查询：它会从原处继续。"),
    "B13": (
        "查询的位置被移动过，此后还没有运行",
        "启动查询：它会从新位置继续。要撤销移动：metaq-spark checkpoint undo。",
    ),
    "B14": ("查询刚刚启动", "无需处理：第一个批次几秒内就会开始。"),
    "C1": ("查询位点用时太长", "让一个查询读取更少的主题，或让 ZooKeeper、名字服务器和 Broker 应答得更快。"),
    "C2": (
        "写检查点用时太长",
        "把检查点放到更快的文件系统上，或加大批次：更长的触发间隔，或更高的 maxBytesPerTrigger。",
    ),
    "C3": ("生成计划用时太长", "计划太大：减少 union 和视图，不要推断模式，避免不断增长的计划。"),
    "C4": (
        "转换或写出用时太长",
        "用 format('noop') 跑同样的读取：如果很快，瓶颈就是写出或某个转换（UDF、shuffle），否则请增加核或分区。",
    ),
    "C5": (
        "状态用时太长",
        "使用带 changelog 检查点的 RocksDB 状态存储，让状态能够遗忘（水位线），状态分区不要超过核数所需。",
    ),
    "C6": (
        "任务数远多于行数所需",
        "把 spark.sql.shuffle.partitions 从 {tasks} 改为大约核的数量；"
        "有状态的查询沿用检查点中的数量，因此需要新的检查点。",
    ),
    "C7": (
        "批次太小，抵不上每批的开销",
        "给查询更长的触发间隔或更大的批次；在 Spark 中设置 spark.python.unix.domain.socket.enabled=true "
        "可降低 Python worker 的开销。",
    ),
    "C9": (
        "查询的限额是瓶颈",
        "如果机器还有余力，请调高 maxBytesPerTrigger 或 maxOffsetsPerTrigger，或缩短触发间隔。",
    ),
    "C10": (
        "消息到达比读取快",
        "给查询更多的核：每个分区最多一个，使用 minPartitions 时可以更多；或用更大的批次。",
    ),
    "C11": ("读取比消息到达快", "等待即可，无需处理。"),
    "C12": ("查询跟得上", "无需处理。"),
    "C13": (
        "查询的积压保持不变",
        "读取与到达一样快，但追不上：请给它更多的核，或更大的批次。",
    ),
    "D1": (
        "水位线停住不动",
        "水位线越过之前不会有任何输出。事件是否都是旧的，列是否选对，单位是否正确？",
    ),
    "D2": (
        "没有数据的源拖住了水位线",
        "源 {source} 需要不时发送数据；或者，如果它迟到的行可以丢弃，请设置 "
        "spark.sql.streaming.multipleWatermarkPolicy=max。",
    ),
    "D3": ("迟到的行被丢弃", "给 withWatermark 更长的延迟，或检查生产者的时钟。"),
    "D4": (
        "有一行来自未来",
        "请在批次 {batch} 中找到该行，纠正其生产者的时钟；在 withWatermark 之前过滤掉这样的行。水位线不会后退："
        "查询需要新的检查点。",
    ),
    "D7": ("foreachBatch 什么也没有读", "请检查该函数：只有 write.save()、count() 这样的动作才会读取行。"),
    "E1": (
        "状态不断增长，从不遗忘",
        "请让 {operator} 能够遗忘：使用水位线，并在键（window）或 dropDuplicates 中包含时间。",
    ),
    "E2": ("状态占满内存", "请使用 RocksDB 状态存储：spark.sql.streaming.stateStore.providerClass。"),
    "E5": ("状态分区的数量是固定的", "要修改它，请用新的检查点启动。"),
    "F0": (
        "检查点属于其他连接器",
        "本命令只认识 format('metaq') 和 format('rocketmq') 的位置；请查看查询的进度。",
    ),
    "F1": ("两个 driver 使用同一个检查点", "请停掉其中一个。每个查询应有自己的 checkpointLocation。"),
    "F2": (
        "有不止一个批次已计划而未提交",
        "该目录是在查询运行时复制的，或已损坏：请在查询停止时重新复制。",
    ),
    "F3": (
        "检查点属于其他主题",
        "请用检查点中的主题启动查询，或使用新的检查点；metaq-spark checkpoint drop 可让它忘掉一个主题。",
    ),
    "F4": ("检查点中最新的文件已损坏", "在查询停止时，把 {file} 及其 .crc 文件移出该目录：{repeated}。"),
    "F5": (
        "报告属于另一个查询",
        "有人用另一个 checkpointLocation 启动了查询，或者这些是别的查询的报告。",
    ),
    "G5": (
        "有服务器没有应答或拒绝请求",
        "请检查地址以及服务器是否在运行。RocketMQ 的错误码 16：该账号需要主题的 SUB 和 GET 权限，"
        "以及消费组的 SUB 权限。",
    ),
    "G6": (
        "路由指向没有应答的 Broker",
        "Broker 离开两分钟后名字服务器才会忘记它。在此之前查询保持它在那里的位置并再次询问；请启动该 Broker，或等待。",
    ),
    "U0": ("证据不足以判断", "请提供缺少的证据，再检查一次。"),
}
"""By the rule's id."""

NUMBERS: Final[Mapping[str, str]] = {
    "answers took": "应答用时",
    "arrives": "到达",
    "asking for offsets": "询问位点",
    "batch": "批次",
    "batch size": "批次大小",
    "batches": "批次数",
    "batches without rows": "无行批次数",
    "brokers that refuse messages": "拒收的 Broker 数",
    "cores": "核数",
    "dropped rows": "丢弃的行",
    "event time": "事件时间",
    "every": "间隔",
    "failures": "失败次数",
    "faults": "故障数",
    "file": "文件",
    "first batch": "第一个批次",
    "fixed cost": "固定开销",
    "interval": "触发间隔",
    "is read": "读取",
    "lag": "积压",
    "last message stored": "最后一条消息",
    "last sign of life": "最后一次活动",
    "longest task": "最长的任务",
    "memory of an executor": "executor 内存",
    "new partitions": "新分区数",
    "partitions": "分区数",
    "partitions of the state": "状态分区数",
    "per row": "每行",
    "planned batches": "已计划的批次数",
    "position": "位置",
    "queries in the reports": "报告中的查询数",
    "removed": "已删除",
    "removed unread": "未读即删除",
    "rows": "行数",
    "rows each": "每个的行数",
    "rows of state": "状态行数",
    "rows of the others": "其他源的行数",
    "running for": "已运行",
    "running tasks": "运行中的任务",
    "runs": "运行次数",
    "servers away": "无应答的服务器",
    "setting": "设置",
    "share of one partition": "单个分区占比",
    "shuffle partitions": "shuffle 分区数",
    "silent source": "无数据的源",
    "size of a batch": "每批大小",
    "state": "状态",
    "such partitions": "此类分区数",
    "such routes": "此类路由数",
    "time lag": "积压时长",
    "time to go": "预计还需",
    "topics of the checkpoint": "检查点的主题数",
    "unread in new partitions": "新分区未读",
    "usual": "平常",
    "waiting tasks": "等待的任务",
    "watermark": "水位线",
    "window": "统计时长",
    "planning": "生成计划",
    "writing the checkpoint": "写检查点",
}
"""Names of figures; Spark's own names, such as ``addBatch``, are not translated."""

UNITS: Final[Mapping[str, str]] = {
    "bytes": "字节",
    "bytes/s": "字节/秒",
    "messages": "条消息",
    "messages/s": "条消息/秒",
    "ms": "毫秒",
    "of the time": "（占时间的比例）",
    "offsets": "个位点",
    "offsets/s": "个位点/秒",
    "rows": "行",
    "s": "秒",
    "s ago": "秒前",
}

MISSING: Final[Mapping[str, str]] = {
    "whether a driver runs, and what it does": "是否有 driver 在运行，它在做什么",
    "what the brokers hold now": "Broker 现在有什么",
    "what the driver waits for": "driver 在等什么",
    "whether it was a run with availableNow, which ends by itself": "是否为会自行结束的 availableNow 运行",
    "the position and the batches of the query": "查询的位置和批次",
    "how fast messages arrive": "消息到达的速度",
}
"""What is not known, where that is a sentence without names."""

_WORDS: Final = (
    (re.compile(r"^the servers$"), "各服务器"),
    (re.compile(r"^the brokers$"), "各 Broker"),
    (re.compile(r"^which no broker was asked for$"), "（未询问 Broker）"),
    (re.compile(r"^the partition of this task$"), "该任务的分区"),
    (re.compile(r"^batch (\S+) is planned anew$"), r"批次 \1 会重新规划"),
    (re.compile(r"^batch (\S+) is run again$"), r"批次 \1 会再次运行"),
    (re.compile(r" and (\d+) more$"), r" 等另外 \1 个"),
)


def chinese_words(words: Mapping[str, str]) -> dict[str, str]:
    """Return the words of an advice; names stay."""
    return {name: chinese_word(word) for name, word in words.items()}


def chinese_word(word: str) -> str:
    for pattern, chinese in _WORDS:
        word = pattern.sub(chinese, word)
    return word

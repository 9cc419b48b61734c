"""Every text of the pages, as rows: English, which is its key in the templates, and Chinese."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ROWS: Final[tuple[tuple[str, str], ...]] = (
    # frame
    ("Overview", "概览"),
    ("Spark queries", "Spark 查询"),
    ("Topics", "主题"),
    ("Groups", "消费组"),
    ("Dead letters", "死信"),
    ("Transactions", "事务"),
    ("Replication", "复制"),
    ("Clients", "客户端"),
    ("Screens", "页面"),
    ("Appearance", "外观"),
    ("Colours:", "配色："),
    ("like the browser", "跟随浏览器"),
    ("light", "浅色"),
    ("dark", "深色"),
    ("Skip to the content", "跳到正文"),
    ("Refreshes itself; press to pause", "自动刷新，按此暂停"),
    ("Paused; press to go on", "已暂停，按此继续"),
    ("no answer", "无应答"),
    (
        "The dashboard does not answer. What you see may be old. This page goes on when it is back.",
        "控制台没有应答，显示的内容可能已过时。恢复后本页会自动继续。",
    ),
    ("This form is too old. Open the page again.", "表单已过期，请重新打开页面。"),
    ("What is shown is of {time}.", "显示的是 {time} 的内容。"),
    ("{server} has not answered since {time}: {why}.", "{server} 自 {time} 起没有应答：{why}。"),
    ("What it has is missing here.", "它的内容未在此显示。"),
    ("read only", "只读"),
    ("done", "完成"),
    ("Show", "显示"),
    ("Back", "上一页"),
    ("Next", "下一页"),
    ("Pages", "分页"),
    ("page {number} of {count}", "第 {number} 页，共 {count} 页"),
    ("Name contains", "名称包含"),
    ("Press / to get here", "按 / 跳到此处"),
    ("all", "全部"),
    ("and {count} more", "等另外 {count} 个"),
    ("time", "时间"),
    ("Token", "令牌"),
    ("This is not the token that the dashboard was started with.", "这不是启动控制台时设置的令牌。"),
    ("Open", "打开"),
    ("Not found", "未找到"),
    ("Not allowed", "不允许"),
    ("Something is wrong", "出错了"),
    # overview
    ("Brokers", "Broker"),
    ("Messages", "消息"),
    ("Stored", "已存储"),
    ("Messages in", "写入消息"),
    ("Messages in, a second", "每秒写入消息"),
    ("Out", "读出"),
    ("a second", "每秒"),
    ("Most behind", "积压最多"),
    ("all groups", "全部消费组"),
    ("No consumer group has an offset.", "没有消费组提交过位点。"),
    ("Busiest topics", "最繁忙的主题"),
    ("all topics", "全部主题"),
    ("No topic has a message yet.", "还没有任何消息。"),
    ("No broker answers.", "没有 Broker 应答。"),
    ("broker", "Broker"),
    ("address", "地址"),
    ("role", "角色"),
    ("version", "版本"),
    ("up for", "已运行"),
    ("messages", "消息数"),
    ("bytes", "字节"),
    ("in a second", "每秒写入"),
    ("out a second", "每秒读出"),
    ("disk used", "磁盘占用"),
    # topics
    ("{count} topics", "{count} 个主题"),
    ("topic", "主题"),
    ("topics", "主题"),
    ("partitions", "分区数"),
    ("size", "大小"),
    ("largest lag", "最大积压"),
    ("No topic has such a name.", "没有匹配的主题。"),
    ("There is no topic yet.", "还没有主题。"),
    ("Topic", "主题"),
    ("Partition", "分区"),
    ("Partitions", "分区"),
    ("partition", "分区"),
    ("Size", "大小"),
    ("Last message", "最后一条消息"),
    ("last message", "最后一条消息"),
    ("Read by", "消费者"),
    ("No consumer group has an offset in this topic.", "没有消费组在此主题提交过位点。"),
    ("start", "起始"),
    ("end", "末尾"),
    ("Offsets count bytes.", "位点按字节计。"),
    ("Offsets count messages.", "位点按消息计。"),
    # messages
    ("Live", "实时"),
    ("Value contains", "内容包含"),
    ("Tag", "标签"),
    ("Key", "键"),
    ("Message id", "消息 ID"),
    ("From", "从"),
    ("Until", "到"),
    ("the end", "末尾"),
    ("Shown as", "显示为"),
    ("automatic", "自动"),
    ("text", "文本"),
    ("JSON", "JSON"),
    ("GB18030, GBK", "GB18030、GBK"),
    ("Big5", "Big5"),
    ("UTF-16", "UTF-16"),
    ("hexadecimal", "十六进制"),
    ("the newest", "最新"),
    ("the oldest", "最早"),
    ("15 minutes ago", "15 分钟前"),
    ("an hour ago", "1 小时前"),
    ("a day ago", "1 天前"),
    (
        "From and until: latest, earliest, 15m, 2h, 3d, 2026-01-31T12:00:00Z, or an offset with one partition.",
        "“从”和“到”可填：latest、earliest、15m、2h、3d、2026-01-31T12:00:00Z，选定一个分区时也可填位点。",
    ),
    ("incomplete", "不完整"),
    ("Only the newest {count} are shown: they are long.", "只显示最新的 {count} 条：它们很长。"),
    (
        "Not all was read in time: newer messages may be missing. Choose one partition.",
        "未能及时读完，可能缺少更新的消息。请选定一个分区。",
    ),
    ("stored", "存储时间"),
    ("at", "位置"),
    ("Show the whole message", "显示完整消息"),
    ("tag", "标签"),
    ("keys", "键"),
    ("value", "内容"),
    ("(empty)", "（空）"),
    ("How far the search got", "搜索进度"),
    ("searching", "搜索中"),
    ("stopped", "已停止"),
    ("more", "还有"),
    ("{read} messages read, {found} found", "已读 {read} 条，找到 {found} 条"),
    ("Stop", "停止"),
    ("Go on", "继续"),
    ("Value", "内容"),
    ("Copy", "复制"),
    ("Copied", "已复制"),
    ("Download", "下载"),
    ("The beginning is shown. Download has all of it.", "只显示开头，下载可得到全部。"),
    ("Message", "消息"),
    ("Offset", "位点"),
    ("Keys", "键"),
    ("Delivered again", "重投次数"),
    ("Show what follows", "显示后面的消息"),
    ("Follow", "跟踪"),
    ("New messages", "新消息"),
    ("live", "实时"),
    ("Waiting for the next message.", "等待下一条消息。"),
    ("More arrive than are shown.", "新消息太多，只显示一部分。"),
    # groups
    ("Consumer groups", "消费组"),
    ("{count} groups", "{count} 个消费组"),
    ("group", "消费组"),
    ("members", "成员数"),
    ("lag", "积压"),
    ("state", "状态"),
    ("nobody reads", "无人消费"),
    ("up to date", "已追平"),
    ("behind", "有积压"),
    ("No group has such a name.", "没有匹配的消费组。"),
    ("There is no consumer group yet.", "还没有消费组。"),
    ("Lag", "积压"),
    ("Members", "成员"),
    ("Read, a second", "每秒读取"),
    ("Lag grows", "积压增长"),
    ("Lag shrinks", "积压减少"),
    ("Lag over time", "积压变化"),
    ("The first two measurements are still to come.", "还没有两次测量。"),
    ("position", "位置"),
    ("Show the next messages of the group", "显示该组接下来的消息"),
    ("The group has no offsets.", "该组没有位点。"),
    ("Show the dead letters of this group", "显示该组的死信"),
    ("Set the offsets", "重置位点"),
    ("First you see what would change.", "先显示会有什么变化。"),
    ("The group must not be running.", "消费组必须已停止。"),
    ("To", "到"),
    ("to", "到"),
    ("Show what would change", "预览变化"),
    ("skip everything", "跳过全部"),
    ("read all again", "全部重读"),
    ("The offsets are set.", "位点已重置。"),
    ("offset before", "原位点"),
    ("offset after", "新位点"),
    ("difference", "差值"),
    (
        "This dashboard only shows. Start it with --write to change something.",
        "本控制台为只读。要修改，请用 --write 启动。",
    ),
    (
        "Nothing is changed yet. Messages before an offset are not read any more; messages after it are read again.",
        "尚未修改。位点之前的消息不再读取，之后的消息会重新读取。",
    ),
    ("Set these offsets", "确认重置"),
    ("Leave as it is", "保持不变"),
    # dead letters
    ("Messages that consumers of a group rejected.", "消费组的消费者拒绝的消息。"),
    ("Group", "消费组"),
    ("What was sent again", "重发结果"),
    ("number", "编号"),
    ("result", "结果"),
    ("stored at", "存储位置"),
    ("sent", "已发送"),
    ("failed", "失败"),
    ("{count} messages", "{count} 条消息"),
    ("the first ones", "仅显示开头部分"),
    ("selected", "选择"),
    ("moved", "移入时间"),
    ("attempts", "尝试次数"),
    ("reason", "原因"),
    ("To topic", "发到主题"),
    ("its own", "原主题"),
    ("Send the selected ones again", "重发所选消息"),
    ("No message is selected.", "没有选择消息。"),
    ("The group has no dead letters.", "该组没有死信。"),
    # transactions
    (
        "RocketMQ's brokers list no open transactions. A message of one is stored as a half message, and the broker "
        "asks its producer what became of it.",
        "RocketMQ 的 Broker 不列出未结束的事务。事务消息先存为半消息，由 Broker 向生产者回查结果。",
    ),
    ("Begun", "已开始"),
    ("Committed", "已提交"),
    ("Rolled back", "已回滚"),
    ("Prepared now", "当前已准备"),
    ("Prepared branches", "已准备的分支"),
    ("stored, and not visible until somebody decides", "已存储，决定之前不可见"),
    ("resource", "资源"),
    ("global id", "全局 ID"),
    ("branch", "分支"),
    ("decision", "决定"),
    ("decided", "已决定"),
    ("undecided", "未决定"),
    ("No branch is prepared.", "没有已准备的分支。"),
    ("Decisions of Spark queries", "Spark 查询的决定"),
    ("last batch", "最后一批"),
    # replication
    ("trouble", "故障"),
    ("in sync", "同步"),
    ("out of sync", "未同步"),
    ("No other broker copies from it.", "没有其他 Broker 从它复制。"),
    ("No broker says anything of its replication.", "没有 Broker 报告复制情况。"),
    # clients
    ("Connections to broker {name}", "Broker {name} 的连接数"),
    ("Running consumers", "运行中的消费者"),
    ("{count} consumers", "{count} 个消费者"),
    ("of the first {count} groups", "仅前 {count} 个消费组"),
    ("consumer", "消费者"),
    ("language", "语言"),
    ("No consumer is running in a group.", "没有消费组在运行。"),
    # Spark queries
    ("query", "查询"),
    ("verdict", "结论"),
    ("rows a second", "每秒行数"),
    ("No Spark query is known to the dashboard.", "控制台还不知道任何 Spark 查询。"),
    (
        "Name checkpoint folders with --checkpoint, or let a query report here:",
        "用 --checkpoint 指定检查点目录，或让查询向这里报告：",
    ),
    ("how", "方法"),
    ("looking", "检查中"),
    ("The first look is still to come.", "尚未完成第一次检查。"),
    ("Show a query here", "在这里显示查询"),
    (
        "By its checkpoint folder, if it is on this machine, running or not:",
        "通过本机上的检查点目录，无论查询是否在运行：",
    ),
    ("By a listener in the program, which reports its progress, too:", "通过程序中的监听器，它还会报告进度："),
    ("idle", "空闲"),
    ("working", "处理中"),
    ("catching up", "追赶中"),
    ("falling behind", "越落越远"),
    ("waiting", "等待"),
    ("stuck", "卡住"),
    ("gone", "已消失"),
    ("unknown", "未知"),
    ("not ours", "不是本系统的查询"),
    ("rule", "规则"),
    ("What to do:", "建议："),
    ("Age of the lag", "积压时长"),
    ("Caught up in", "预计追平"),
    ("Arriving, a second", "每秒到达"),
    ("Rows, a second", "每秒行数"),
    ("Batch", "批次"),
    ("running for {span}", "已运行 {span}"),
    ("Usual batch", "批次通常用时"),
    ("Time per phase of the last batch", "上一批各阶段用时"),
    ("{span} ago", "{span} 前"),
    ("What else was found", "其他发现"),
    ("not known", "不清楚"),
    ("Show the next messages of the query", "显示查询接下来的消息"),
    ("behind by", "落后时间"),
    ("remark", "备注"),
    ("Checkpoint", "检查点"),
    ("Query id", "查询 ID"),
    ("Run id", "运行 ID"),
    ("new", "新分区"),
    ("removed", "已删除"),
    ("recreated", "已重建"),
    ("ahead", "超前"),
)

SINGULAR: Final = {
    "{count} topics": "{count} topic",
    "{count} groups": "{count} group",
    "{count} messages": "{count} message",
    "{count} consumers": "{count} consumer",
}
"""English for a count of 1."""

ENGLISH, CHINESE = "en", "zh"


@dataclass(frozen=True, slots=True)
class Language:
    """A language of the pages: its code, its tag in HTML, and its own name for itself."""

    code: str
    tag: str
    name: str


LANGUAGES: Final = {
    ENGLISH: Language(ENGLISH, "en", "English"),
    CHINESE: Language(CHINESE, "zh-CN", "中文"),
}

_CHINESE: Final = dict(ROWS)


def text(language: str, english: str, **values: object) -> str:
    """Return a text in a language of ``LANGUAGES``, with ``values`` for its fields.

    Raises:
        KeyError: No row has the text.
    """
    chinese = _CHINESE[english]
    if language == CHINESE:
        return chinese.format(**values)
    chosen = SINGULAR.get(english, english) if values.get("count") == "1" else english
    return chosen.format(**values)


def preferred(header: str) -> str:
    """Return the language that an ``Accept-Language`` header asks for; English if it names neither."""
    wanted = []
    for position, each in enumerate(header.split(",")[:20]):
        tag, _, quality = each.strip().partition(";q=")
        code = tag.partition("-")[0].lower()
        if code in LANGUAGES:
            try:
                wanted.append((-float(quality or 1), position, code))
            except ValueError:
                continue
    return min(wanted)[2] if wanted else ENGLISH

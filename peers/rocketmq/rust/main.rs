// A client with the crate rocketmq-client-rust that speaks the line protocol of peers/rocketmq/conversation.py.
//
// Arguments: nameServers role=producer|transactions|push|ordered group; topic tags=* (or sql) retries=1 replies=no for
// consumers.
#![recursion_limit = "512"]

use std::any::Any;
use std::collections::hash_map::DefaultHasher;
use std::collections::HashMap;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

use rocketmq_client_rust::{
    ClientError, ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus, ConsumeOrderlyContext, ConsumeOrderlyStatus, DefaultMQProducer, DefaultMQPushConsumer,
    LocalTransactionState, MQPushConsumer, MessageListenerConcurrently, MessageListenerOrderly, MessageSelector,
    MessageUtil, TransactionListener, TransactionMQProducer,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_model::result::{SendResult, SendStatus};
use rocketmq_protocol::protocol::heartbeat::message_model::MessageModel;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};
use tokio::io::{AsyncBufReadExt, BufReader};

const DEADLINE_MS: u32 = 10_000;

/// The runtime is made for a machine of so many cores: on a small one, the client sends messages back that arrive when
/// its threads and their queue are full, before the listener has seen them.
const PARALLELISM: usize = 16;

type Fields = HashMap<String, String>;

fn say(event: &str, fields: &[(&str, &str)]) {
    let line: String = fields.iter().map(|(key, value)| format!("\t{key}={value}")).collect();
    println!("{event}{line}");
}

fn in_one_line(reason: &str) -> String {
    reason.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn parsed<'a>(words: impl Iterator<Item = &'a str>) -> Fields {
    let pairs = words.map(|word| word.split_once('=').unwrap_or((word, "")));
    pairs.map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// Calls `each` with the fields of every command before "close" or the end of the input.
async fn commands<F: Future<Output = ()>>(mut each: impl FnMut(Fields) -> F) {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line == "close" {
            return;
        }
        each(parsed(line.split('\t').skip(1))).await;
    }
}

fn message(command: &Fields, body: &str) -> Message {
    let mut made = Message::builder().topic(command["topic"].as_str()).body_slice(body.as_bytes());
    if let Some(tag) = command.get("tag") {
        made = made.tags(tag.as_str());
    }
    if let Some(key) = command.get("key") {
        made = made.key(key.as_str());
    }
    if let Some(delay) = command.get("delay") {
        made = made.delay_level(delay.parse().expect("delay is a number"));
    }
    let mut made = made.build_unchecked();
    if let Some(property) = command.get("property") {
        made.put_user_property("property".into(), property.as_str().into()).expect("a property");
    }
    made
}

fn report(result: ClientResult<Option<SendResult>>) {
    let sent = match result {
        Ok(Some(sent)) if sent.send_status == SendStatus::SendOk => sent,
        Ok(other) => return say("failed", &[("reason", &in_one_line(&format!("{other:?}")))]),
        Err(reason) => return say("failed", &[("reason", &in_one_line(&format!("{reason:?}")))]),
    };
    let queue = sent.message_queue.as_ref().map(|queue| queue.queue_id().to_string()).unwrap_or_default();
    let id = sent.msg_id.map(|id| id.to_string()).unwrap_or_default();
    let offset = sent.queue_offset.to_string();
    let place = sent.offset_msg_id.unwrap_or_default();
    say("sent", &[("id", &id), ("queue", &queue), ("offset", &offset), ("place", &place)]);
}

async fn send(producer: &DefaultMQProducer, command: Fields) {
    if let Some(bodies) = command.get("bodies") {
        let messages: Vec<Message> = bodies.split(',').map(|body| message(&command, body)).collect();
        return report(producer.send_batch(messages).await.map(Some));
    }
    let made = message(&command, &command["body"]);
    if let Some(wait) = command.get("wait") {
        return request(producer, made, wait.parse().expect("wait is a number")).await;
    }
    let Some(order) = command.get("order") else {
        return report(producer.send(made).await);
    };
    let mut hasher = DefaultHasher::new();
    order.hash(&mut hasher);
    let chosen = hasher.finish() as usize;
    let select = |queues: &[_], _: &Message, chosen: &usize| queues.get(chosen % queues.len()).cloned();
    report(producer.send_with_selector(made, select, chosen).await);
}

async fn request(producer: &DefaultMQProducer, made: Message, wait_ms: u64) {
    match producer.request(made, wait_ms).await {
        Ok(reply) => {
            let tag = reply.tags().unwrap_or_default();
            let property = reply.user_property(&"property".into()).unwrap_or_default();
            let body = reply.get_body().map(|body| String::from_utf8_lossy(body).into_owned()).unwrap_or_default();
            say("replied", &[("tag", &tag), ("property", &property), ("body", &body)]);
        }
        Err(reason) => report(Err(reason)),
    }
}

async fn started_producer(runtime: &Arc<ClientRuntime>, given: &Fields, group: String) -> DefaultMQProducer {
    let mut made = DefaultMQProducer::builder(Arc::clone(runtime))
        .producer_group(group)
        .name_server_addr(given["nameServers"].as_str())
        .send_msg_timeout(DEADLINE_MS)
        .build();
    made.start().await.expect("the producer starts");
    made
}

async fn produce(runtime: &Arc<ClientRuntime>, given: &Fields) {
    let mut producer = started_producer(runtime, given, given["group"].clone()).await;
    say("ready", &[]);
    commands(|command| send(&producer, command)).await;
    producer.shutdown().await;
}

/// What each transaction is to answer, by the body of its message: at once, and when the broker checks back.
#[derive(Clone, Default)]
struct Transactions(Arc<Mutex<HashMap<String, (String, String)>>>);

impl Transactions {
    fn note(&self, command: &Fields) {
        let then = command.get("then").cloned().unwrap_or_default();
        self.0.lock().expect("no panic").insert(command["body"].clone(), (command["state"].clone(), then));
    }

    fn states(&self, body: &str) -> (String, String) {
        self.0.lock().expect("no panic").get(body).cloned().unwrap_or_default()
    }
}

fn state(word: &str) -> LocalTransactionState {
    match word {
        "commit" => LocalTransactionState::CommitMessage,
        "rollback" => LocalTransactionState::RollbackMessage,
        _ => LocalTransactionState::Unknown,
    }
}

impl TransactionListener for Transactions {
    fn execute_local_transaction(
        &self,
        message: &dyn MessageTrait,
        _: Option<&(dyn Any + Send + Sync)>,
    ) -> LocalTransactionState {
        let body = message.get_body().map(|body| String::from_utf8_lossy(body).into_owned()).unwrap_or_default();
        state(&self.states(&body).0)
    }

    fn check_local_transaction(&self, message: &MessageExt) -> LocalTransactionState {
        let body = text(message);
        say("checked", &[("body", &body)]);
        state(&self.states(&body).1)
    }
}

async fn transact(runtime: &Arc<ClientRuntime>, given: &Fields) {
    let transactions = Transactions::default();
    let mut producer = TransactionMQProducer::builder(Arc::clone(runtime))
        .producer_group(given["group"].as_str())
        .name_server_addr(given["nameServers"].as_str())
        .send_msg_timeout(DEADLINE_MS)
        .transaction_listener(transactions.clone())
        .build();
    producer.start().await.expect("the producer starts");
    say("ready", &[]);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line == "close" {
            break;
        }
        let command = parsed(line.split('\t').skip(1));
        transactions.note(&command);
        let made = message(&command, &command["body"]);
        let sent = producer.send_message_in_transaction::<(), _>(made, None).await;
        report(sent.map(|each| each.send_result));
    }
    producer.shutdown().await;
}

fn text(message: &MessageExt) -> String {
    message.body().map(|body| String::from_utf8_lossy(&body).into_owned()).unwrap_or_default()
}

/// What a consumer does with its messages. With `replier` it replies to requests.
struct Taker {
    replier: Option<(Arc<DefaultMQProducer>, tokio::runtime::Handle)>,
}

impl Taker {
    /// Reports the messages; returns whether all are accepted.
    fn take(&self, messages: &[&MessageExt]) -> bool {
        let mut accepted = true;
        for each in messages {
            let body = text(each);
            if let Some((producer, handle)) = &self.replier {
                if !body.starts_with("silent") {
                    handle.spawn(reply(Arc::clone(producer), each.message_inner().clone(), body.clone()));
                }
            }
            say(
                "message",
                &[
                    ("queue", &each.queue_id().to_string()),
                    ("offset", &each.queue_offset().to_string()),
                    ("tag", &each.get_tags().unwrap_or_default()),
                    ("key", &each.message_inner().get_keys().unwrap_or_default()),
                    ("property", &each.message_inner().user_property(&"property".into()).unwrap_or_default()),
                    ("times", &each.reconsume_times().to_string()),
                    ("body", &body),
                ],
            );
            accepted &= !body.starts_with("fail");
        }
        accepted
    }
}

async fn reply(producer: Arc<DefaultMQProducer>, request: Message, body: String) {
    let mut made = match MessageUtil::create_reply_message(&request, format!("reply to {body}").as_bytes()) {
        Ok(made) => made,
        Err(reason) => return say("unanswered", &[("reason", &in_one_line(&format!("{reason:?}")))]),
    };
    made.set_tags("reply".into());
    made.put_user_property("property".into(), "of the reply".into()).expect("a property");
    match producer.send(made).await {
        Ok(sent) => say("answered", &[("status", &format!("{:?}", sent.map(|each| each.send_status)))]),
        Err(reason) => say("unanswered", &[("reason", &in_one_line(&format!("{reason:?}")))]),
    }
}

impl MessageListenerConcurrently for Taker {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        Ok(if self.take(messages) {
            ConsumeConcurrentlyStatus::ConsumeSuccess
        } else {
            ConsumeConcurrentlyStatus::ReconsumeLater
        })
    }
}

impl MessageListenerOrderly for Taker {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        context: &mut ConsumeOrderlyContext,
    ) -> ClientResult<ConsumeOrderlyStatus> {
        context.set_auto_commit(true);
        Ok(if self.take(messages) {
            ConsumeOrderlyStatus::Success
        } else {
            ConsumeOrderlyStatus::SuspendCurrentQueueAMoment
        })
    }
}

async fn consume(runtime: &Arc<ClientRuntime>, given: &Fields) {
    let retries = given.get("retries").and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut consumer = DefaultMQPushConsumer::builder(Arc::clone(runtime))
        .consumer_group(given["group"].as_str())
        .name_server_addr(given["nameServers"].as_str())
        .message_model(MessageModel::Clustering)
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .max_reconsume_times(retries)
        .build();
    let topic = given["topic"].as_str();
    let tags = given.get("tags").map(String::as_str).unwrap_or("*");
    match given.get("sql") {
        Some(sql) => consumer.subscribe_with_selector(topic, Some(MessageSelector::by_sql(sql.as_str()))).await,
        None => consumer.subscribe(topic, tags).await,
    }
    .expect("a subscription");
    let replier = match given.get("replies").map(String::as_str) {
        Some("yes") => {
            let producer = started_producer(runtime, given, format!("{}-replies", given["group"])).await;
            Some((Arc::new(producer), tokio::runtime::Handle::current()))
        }
        _ => None,
    };
    match given["role"].as_str() {
        "ordered" => consumer.register_message_listener_orderly(Taker { replier }),
        _ => consumer.register_message_listener_concurrently(Taker { replier }),
    }
    consumer.start().await.expect("the consumer starts");
    say("ready", &[]);
    commands(|_| async {}).await;
    consumer.shutdown().await;
}

#[tokio::main]
async fn main() -> ClientResult<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let given = parsed(words.iter().map(String::as_str));
    let owner = RuntimeOwner::plan(RuntimeConfig::for_parallelism("client", PARALLELISM))
        .expect("a valid configuration")
        .build()
        .map_err(|source| ClientError::internal("start the client's runtime", source))?;
    let mut telemetry = rocketmq_observability::TelemetryBootstrapConfig::default();
    telemetry.logging.filter = "error".to_string();
    let telemetry = rocketmq_observability::install_global(&telemetry)
        .map_err(|source| ClientError::internal("start the client's telemetry", source))?;
    let component = owner.root_context().component("client");
    let runtime = ClientRuntime::try_new(component, ClientRuntimeConfig::default(), telemetry.handle())?;
    match given["role"].as_str() {
        "producer" => produce(&runtime, &given).await,
        "transactions" => transact(&runtime, &given).await,
        _ => consume(&runtime, &given).await,
    }
    say("closed", &[]);
    std::process::exit(0) // the runtimes of the client need not be taken down
}

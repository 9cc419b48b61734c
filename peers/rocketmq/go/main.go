// A client with RocketMQ's Go client v2 that speaks the line protocol of peers/rocketmq/conversation.py.
//
// Arguments: nameServers role=producer|transactions|push|ordered group; topic tags=* (or sql) retries=1 replies=no for
// consumers.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const deadline = 10 * time.Second

var states = map[string]primitive.LocalTransactionState{
	"commit":   primitive.CommitMessageState,
	"rollback": primitive.RollbackMessageState,
	"unknown":  primitive.UnkonwnState,
}

var output sync.Mutex

func say(event string, fields ...string) {
	output.Lock()
	defer output.Unlock()
	fmt.Println(strings.Join(append([]string{event}, fields...), "\t"))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func parsed(words []string) map[string]string {
	fields := map[string]string{}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		fields[key] = value
	}
	return fields
}

// Commands that came before "close" or the end of the input.
func commands(each func(map[string]string)) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() && lines.Text() != "close" {
		each(parsed(strings.Split(lines.Text(), "\t")[1:]))
	}
}

func message(command map[string]string, body string) *primitive.Message {
	made := primitive.NewMessage(command["topic"], []byte(body))
	if tag, there := command["tag"]; there {
		made.WithTag(tag)
	}
	if key, there := command["key"]; there {
		made.WithKeys([]string{key})
	}
	if delay, there := command["delay"]; there {
		level, err := strconv.Atoi(delay)
		check(err)
		made.WithDelayTimeLevel(level)
	}
	if property, there := command["property"]; there {
		made.WithProperty("property", property)
	}
	if order, there := command["order"]; there {
		made.WithShardingKey(order)
	}
	return made
}

func report(result *primitive.SendResult, err error) {
	if err == nil && result.Status != primitive.SendOK {
		err = fmt.Errorf("send status %d", result.Status)
	}
	if err != nil {
		say("failed", "reason="+strings.Join(strings.Fields(err.Error()), " "))
		return
	}
	queue := strconv.Itoa(result.MessageQueue.QueueId)
	offset := strconv.FormatInt(result.QueueOffset, 10)
	say("sent", "id="+result.MsgID, "queue="+queue, "offset="+offset, "place="+result.OffsetMsgID)
}

func request(made rocketmq.Producer, wait string, message *primitive.Message) {
	milliseconds, err := strconv.Atoi(wait)
	check(err)
	reply, err := made.Request(context.Background(), time.Duration(milliseconds)*time.Millisecond, message)
	if err != nil {
		report(nil, err)
		return
	}
	say("replied", "tag="+reply.GetTags(), "property="+reply.GetProperty("property"), "body="+string(reply.Body))
}

func reply(replier rocketmq.Producer, request *primitive.MessageExt) {
	made, err := consumer.CreateReplyMessage(request, nil) // it takes a body for properties
	check(err)
	made.Body = []byte("reply to " + string(request.Body))
	made.WithTag("reply")
	made.WithProperty("property", "of the reply")
	result, err := replier.SendSync(context.Background(), made)
	if err != nil {
		say("unanswered", "reason="+strings.Join(strings.Fields(err.Error()), " "))
		return
	}
	say("answered", "status="+strconv.Itoa(int(result.Status)))
}

func replier(given map[string]string) rocketmq.Producer {
	made, err := rocketmq.NewProducer(
		producer.WithNameServer(strings.Split(given["nameServers"], ";")),
		producer.WithGroupName(given["group"]+"-replies"),
		producer.WithSendMsgTimeout(deadline),
		producer.WithRetry(2),
	)
	check(err)
	check(made.Start())
	return made
}

func produce(given map[string]string) {
	made, err := rocketmq.NewProducer(
		producer.WithNameServer(strings.Split(given["nameServers"], ";")),
		producer.WithGroupName(given["group"]),
		producer.WithSendMsgTimeout(deadline),
		producer.WithRetry(2),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	)
	check(err)
	check(made.Start())
	say("ready")
	commands(func(command map[string]string) {
		if wait, there := command["wait"]; there {
			request(made, wait, message(command, command["body"]))
			return
		}
		var messages []*primitive.Message
		if bodies, there := command["bodies"]; there {
			for _, body := range strings.Split(bodies, ",") {
				messages = append(messages, message(command, body))
			}
		} else {
			messages = append(messages, message(command, command["body"]))
		}
		report(made.SendSync(context.Background(), messages...))
	})
	check(made.Shutdown())
}

// What each transaction is to answer, by the body of its message: at once, and when the broker checks back.
type transactions struct {
	first, then sync.Map
}

func (these *transactions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	state, _ := these.first.Load(string(message.Body))
	return states[state.(string)]
}

func (these *transactions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	say("checked", "body="+string(message.Body))
	if state, there := these.then.Load(string(message.Body)); there {
		return states[state.(string)]
	}
	return primitive.UnkonwnState
}

func transact(given map[string]string) {
	listener := &transactions{}
	made, err := rocketmq.NewTransactionProducer(
		listener,
		producer.WithNameServer(strings.Split(given["nameServers"], ";")),
		producer.WithGroupName(given["group"]),
		producer.WithSendMsgTimeout(deadline),
	)
	check(err)
	check(made.Start())
	say("ready")
	commands(func(command map[string]string) {
		listener.first.Store(command["body"], command["state"])
		if then, there := command["then"]; there {
			listener.then.Store(command["body"], then)
		}
		result, err := made.SendMessageInTransaction(context.Background(), message(command, command["body"]))
		if err != nil {
			report(nil, err)
			return
		}
		report(result.SendResult, nil)
	})
	check(made.Shutdown())
}

func taken(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	result := consumer.ConsumeSuccess
	for _, each := range messages {
		say("message",
			"queue="+strconv.Itoa(each.Queue.QueueId),
			"offset="+strconv.FormatInt(each.QueueOffset, 10),
			"tag="+each.GetTags(),
			"key="+each.GetKeys(),
			"property="+each.GetProperty("property"),
			"times="+strconv.Itoa(int(each.ReconsumeTimes)),
			"body="+string(each.Body))
		if strings.HasPrefix(string(each.Body), "fail") {
			result = consumer.ConsumeRetryLater
		}
	}
	if concurrent, there := primitive.GetConcurrentlyCtx(ctx); there {
		concurrent.DelayLevelWhenNextConsume = 1
	}
	return result, nil
}

func consume(given map[string]string) {
	retries, err := strconv.Atoi(given["retries"])
	if err != nil {
		retries = 1
	}
	made, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(strings.Split(given["nameServers"], ";")),
		consumer.WithGroupName(given["group"]),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerModel(consumer.Clustering),
		consumer.WithConsumerOrder(given["role"] == "ordered"),
		consumer.WithMaxReconsumeTimes(int32(retries)),
	)
	check(err)
	selector := consumer.MessageSelector{}
	if tags := given["tags"]; tags != "" && tags != "*" {
		selector = consumer.MessageSelector{Type: consumer.TAG, Expression: tags}
	}
	if sql := given["sql"]; sql != "" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: sql}
	}
	take := taken
	if given["replies"] == "yes" {
		answering := replier(given)
		take = func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, each := range messages {
				if !strings.HasPrefix(string(each.Body), "silent") {
					reply(answering, each)
				}
			}
			return taken(ctx, messages...)
		}
	}
	check(made.Subscribe(given["topic"], selector, take))
	check(made.Start())
	say("ready")
	commands(func(map[string]string) {})
	check(made.Shutdown())
}

func main() {
	rlog.SetLogLevel("error")
	given := parsed(os.Args[1:])
	switch given["role"] {
	case "producer":
		produce(given)
	case "transactions":
		transact(given)
	default:
		consume(given)
	}
	say("closed")
}

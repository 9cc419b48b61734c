// A client with RocketMQ's Go client v2 that speaks the line protocol of peers/rocketmq/conversation.py.
//
// Arguments: nameServers role=producer|transactions|push|ordered group; topic tags=* (or sql) retries=1 for consumers.
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
	check(made.Subscribe(given["topic"], selector, taken))
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

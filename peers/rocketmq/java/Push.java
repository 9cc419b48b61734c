import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push consumer of a group: prints queue, queue offset, tags and body of each message, and "ready" when it has started.
 *
 * <p>Arguments: nameServers topic group; count=1 (ends after so many messages) tags=* deadline=60 (seconds) accessKey
 * secretKey. Positions are committed when it ends.
 */
public final class Push {
    private Push() {
    }

    public static void main(String[] arguments) throws Exception {
        Arguments given = new Arguments(arguments);
        CountDownLatch missing = new CountDownLatch(given.number("count", 1));
        DefaultMQPushConsumer consumer =
                new DefaultMQPushConsumer(given.text("group"), given.account(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(given.text("nameServers"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(given.text("topic"), given.text("tags", "*"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                print(context.getMessageQueue().getBrokerName(), each);
                missing.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("ready");
        boolean complete = missing.await((long) given.seconds("deadline", 60), TimeUnit.SECONDS);
        consumer.shutdown();
        System.out.flush();
        System.exit(complete ? 0 : 1);
    }

    private static synchronized void print(String brokerName, MessageExt each) {
        String where = brokerName + "\t" + each.getQueueId() + "\t" + each.getQueueOffset();
        System.out.println("message\t" + where + "\t" + each.getTags() + "\t" + new String(each.getBody()));
    }
}

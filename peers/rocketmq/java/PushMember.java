import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A push consumer that is a member of a group until its standard input ends.
 *
 * <p>Arguments: nameServers topic group log state; ordered=0 consistent=0. {@code log} gets a line for each message: ms since
 * 1970, queue, body. {@code state} is replaced several times a second: the client's id, and a line for each queue of the
 * topic that it reads.
 */
public final class PushMember {
    private PushMember() {
    }

    public static void main(String[] arguments) throws Exception {
        Arguments given = new Arguments(arguments);
        String topic = given.text("topic");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
                given.text("group"),
                given.account(),
                given.number("consistent", 0) == 1
                        ? new AllocateMessageQueueConsistentHash()
                        : new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(given.text("nameServers"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        PrintStream log = new PrintStream(new FileOutputStream(given.text("log"), true), true, "UTF-8");
        if (given.number("ordered", 0) == 1) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(each -> write(log, context.getMessageQueue(), each));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(each -> write(log, context.getMessageQueue(), each));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        Thread shows = new Thread(() -> show(consumer, topic, Path.of(given.text("state"))));
        shows.setDaemon(true);
        shows.start();
        while (System.in.read() >= 0) {
            continue;
        }
        consumer.shutdown();
        System.exit(0);
    }

    private static void write(PrintStream log, MessageQueue queue, MessageExt each) {
        String where = queue.getBrokerName() + ":" + queue.getQueueId();
        log.print(System.currentTimeMillis() + "\t" + where + "\t" + new String(each.getBody()) + "\n");
    }

    private static void show(DefaultMQPushConsumer consumer, String topic, Path state) {
        Path made = state.resolveSibling(state.getFileName() + ".new");
        try {
            while (true) {
                TreeSet<String> lines = new TreeSet<>();
                for (MessageQueue each :
                        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
                    if (each.getTopic().equals(topic)) {
                        lines.add(each.getBrokerName() + ":" + each.getQueueId());
                    }
                }
                String id = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
                Files.writeString(made, id + "\n" + String.join("\n", lines) + "\n");
                Files.move(made, state, StandardCopyOption.ATOMIC_MOVE);
                Thread.sleep(200);
            }
        } catch (Exception failed) {
            failed.printStackTrace();
        }
    }
}

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends batches one after the other, each waiting for its answer, to the queues in turn, and prints "rate", messages and
 * seconds for each run.
 *
 * <p>Arguments: as Write's; batch=1000 runs=3.
 */
public final class SendRate {
    private SendRate() {
    }

    public static void main(String[] arguments) throws Exception {
        Arguments given = new Arguments(arguments);
        DefaultMQProducer producer = Write.started(given);
        List<MessageQueue> queues = Write.sorted(producer.fetchPublishMessageQueues(given.text("topic")));
        int batch = given.number("batch", 1000);
        int count = given.number("count", 0);
        for (int run = 0; run < given.number("runs", 3); run++) {
            long start = System.nanoTime();
            int turn = 0;
            for (int sent = 0; sent < count; sent += batch) {
                List<Message> messages = new ArrayList<>(batch);
                for (int number = sent; number < Math.min(count, sent + batch); number++) {
                    messages.add(Write.message(given, number));
                }
                SendResult result = producer.send(messages, queues.get(turn++ % queues.size()));
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException(result.toString());
                }
            }
            System.out.println("rate\t" + count + "\t" + (System.nanoTime() - start) / 1e9);
            System.out.flush();
        }
        System.exit(0);
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Scenarios of the Java client's transactions. Arguments: the broker's address, a prefix for all names, and the scenarios, which run at the
 * same time. Each prints "ok NAME", or "failed NAME" with the reason. The scenarios "restart" and "adopted" print "restart now" and wait for a line
 * of stdin, before which the broker is to be restarted, or another one is to open its directory.
 */
public final class Transactions {
    private static final Duration LIMIT = Duration.ofSeconds(90);

    private interface Scenario {
        void run(Stage stage) throws Exception;
    }

    /** The names of one scenario, and the clients for it. */
    private record Stage(String bootstrap, String prefix) {
        String name(String word) {
            return prefix + "-" + word;
        }

        void createTopics(String... words) throws Exception {
            try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
                List<NewTopic> topics = new ArrayList<>();
                for (String word : words) {
                    topics.add(new NewTopic(name(word), 2, (short) 1));
                }
                admin.createTopics(topics).all().get();
            }
        }

        KafkaProducer<String, String> producer(String word, int timeoutMs) {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", bootstrap);
            properties.put("transactional.id", name(word));
            properties.put("transaction.timeout.ms", timeoutMs);
            properties.put("max.block.ms", 60_000);
            KafkaProducer<String, String> producer = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
            producer.initTransactions();
            return producer;
        }

        KafkaConsumer<String, String> consumer(String group, String isolation, String protocol) {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", bootstrap);
            properties.put("group.id", name(group));
            properties.put("isolation.level", isolation);
            properties.put("auto.offset.reset", "earliest");
            properties.put("enable.auto.commit", false);
            properties.put("group.protocol", protocol);
            return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
        }

        /** Returns the sorted values of a topic: when there are at least `count`, those that a last poll of 1 s adds included. */
        List<String> read(String word, String isolation, int count) {
            List<String> values = new ArrayList<>();
            try (KafkaConsumer<String, String> consumer = consumer("reader-" + isolation, isolation, "classic")) {
                List<TopicPartition> partitions = List.of(new TopicPartition(name(word), 0), new TopicPartition(name(word), 1));
                consumer.assign(partitions);
                consumer.seekToBeginning(partitions);
                long deadline = System.nanoTime() + LIMIT.toNanos();
                while (values.size() < count && System.nanoTime() < deadline) {
                    consumer.poll(Duration.ofMillis(100)).forEach(record -> values.add(record.value()));
                }
                consumer.poll(Duration.ofSeconds(1)).forEach(record -> values.add(record.value()));
            }
            values.sort(null);
            return values;
        }
    }

    private static void check(Object expected, Object actual) {
        if (!expected.equals(actual)) {
            throw new AssertionError("expected " + expected + ", not " + actual);
        }
    }

    private static void mustFail(String what, Class<?>[] kinds, Runnable action) {
        try {
            action.run();
        } catch (KafkaException error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                for (Class<?> kind : kinds) {
                    if (kind.isInstance(cause)) {
                        return;
                    }
                }
            }
            throw new AssertionError(what + ": " + error + ", caused by " + error.getCause());
        }
        throw new AssertionError(what + " was accepted");
    }

    private static final Class<?>[] FENCED = {
        org.apache.kafka.common.errors.ProducerFencedException.class,
        org.apache.kafka.common.errors.InvalidProducerEpochException.class,
    };

    /** Only the records of committed transactions are read, in several partitions and topics. */
    private static void commitAndAbort(Stage stage) throws Exception {
        stage.createTopics("a", "b");
        try (KafkaProducer<String, String> producer = stage.producer("producer", 60_000)) {
            for (int round = 0; round < 4; round++) {
                producer.beginTransaction();
                for (int partition = 0; partition < 2; partition++) {
                    producer.send(new ProducerRecord<>(stage.name("a"), partition, null, "a" + round + partition));
                    producer.send(new ProducerRecord<>(stage.name("b"), partition, null, "b" + round + partition));
                }
                if (round % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
            producer.beginTransaction();
            producer.commitTransaction(); // empty
        }
        check(List.of("a00", "a01", "a20", "a21"), stage.read("a", "read_committed", 4));
        check(List.of("b00", "b01", "b20", "b21"), stage.read("b", "read_committed", 4));
        check(8, stage.read("a", "read_uncommitted", 8).size());
    }

    /** A second producer with the same transactional id aborts the open transaction, and fences the first producer. */
    private static void fencing(Stage stage) throws Exception {
        stage.createTopics("a");
        try (KafkaProducer<String, String> first = stage.producer("producer", 60_000)) {
            first.beginTransaction();
            first.send(new ProducerRecord<>(stage.name("a"), 0, null, "fenced")).get();
            try (KafkaProducer<String, String> second = stage.producer("producer", 60_000)) {
                second.beginTransaction();
                second.send(new ProducerRecord<>(stage.name("a"), 0, null, "second")).get();
                mustFail("the commit of a fenced producer", FENCED, first::commitTransaction);
                second.commitTransaction();
            }
        }
        check(List.of("second"), stage.read("a", "read_committed", 1));
    }

    /** The coordinator aborts a transaction that is open for longer than its timeout, and the producer can continue or is fenced. */
    private static void timeout(Stage stage) throws Exception {
        stage.createTopics("a");
        try (KafkaProducer<String, String> producer = stage.producer("producer", 1_000)) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(stage.name("a"), 0, null, "late")).get();
            // A record that is written after the open transaction, and that is read as soon as it is aborted.
            try (KafkaProducer<String, String> other = stage.producer("other", 60_000)) {
                other.beginTransaction();
                other.send(new ProducerRecord<>(stage.name("a"), 0, null, "other")).get();
                other.commitTransaction();
            }
            check(List.of("other"), stage.read("a", "read_committed", 1));
            Class<?>[] kinds = Arrays.copyOf(FENCED, 4);
            kinds[2] = org.apache.kafka.common.errors.InvalidTxnStateException.class;
            kinds[3] = org.apache.kafka.common.errors.TransactionAbortableException.class;
            mustFail("the commit of a transaction that timed out", kinds, producer::commitTransaction);
        }
        check(List.of("other"), stage.read("a", "read_committed", 1));
    }

    /** Offsets in transactions: they count with a commit, and not with an abort. A stale member cannot commit them. */
    private static void offsets(Stage stage, String protocol) throws Exception {
        stage.createTopics("in", "out");
        try (KafkaProducer<String, String> producer = stage.producer("source", 60_000)) {
            producer.beginTransaction();
            for (int number = 0; number < 20; number++) {
                producer.send(new ProducerRecord<>(stage.name("in"), number % 2, null, String.format("%02d", number)));
            }
            producer.commitTransaction();
        }
        ConsumerGroupMetadata stale;
        TreeSet<String> seen = new TreeSet<>();
        try (KafkaConsumer<String, String> consumer = stage.consumer("group", "read_committed", protocol);
             KafkaProducer<String, String> producer = stage.producer("worker", 60_000)) {
            consumer.subscribe(List.of(stage.name("in")));
            boolean aborted = false;
            long deadline = System.nanoTime() + LIMIT.toNanos();
            while (seen.size() < 20 && System.nanoTime() < deadline) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    continue;
                }
                Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(stage.name("out"), record.partition(), null, record.value() + (aborted ? "" : "x")));
                    next.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
                if (!aborted) {
                    aborted = true;
                    producer.abortTransaction();
                    Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(next.keySet());
                    next.keySet().forEach(partition -> check(true, committed.get(partition) == null));
                    consumer.seekToBeginning(next.keySet());
                    continue;
                }
                producer.commitTransaction();
                records.forEach(record -> seen.add(record.value()));
            }
            stale = consumer.groupMetadata();
            TreeMap<Integer, Long> committed = new TreeMap<>();
            consumer.committed(consumer.assignment()).forEach((partition, offset) -> committed.put(partition.partition(), offset.offset()));
            check(Map.of(0, 11L, 1, 11L).size(), committed.size());
            committed.values().forEach(offset -> check(true, offset >= 10L));
            consumer.unsubscribe(); // the member leaves
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(stage.name("out"), 0, null, "stale"));
            Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(new TopicPartition(stage.name("in"), 0), new OffsetAndMetadata(0));
            mustFail("offsets of a member that has left", new Class<?>[] {CommitFailedException.class}, () -> {
                producer.sendOffsetsToTransaction(offsets, stale);
                producer.commitTransaction();
            });
            producer.abortTransaction();
        }
        check(new ArrayList<>(seen), stage.read("out", "read_committed", 20));
    }

    /** Transactions continue after a restart of the broker in the middle of one. */
    private static void restart(Stage stage) throws Exception {
        stage.createTopics("a");
        try (KafkaProducer<String, String> producer = stage.producer("producer", 60_000)) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(stage.name("a"), 0, null, "before")).get();
            System.out.println("restart now");
            new BufferedReader(new InputStreamReader(System.in)).readLine();
            producer.send(new ProducerRecord<>(stage.name("a"), 1, null, "after")).get();
            producer.commitTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(stage.name("a"), 0, null, "aborted")).get();
            producer.abortTransaction();
        }
        check(List.of("after", "before"), stage.read("a", "read_committed", 2));
    }

    /**
     * When another broker opens the directory, the transaction of one producer is open, and that of another one has been committed. Both
     * producers continue with what they know.
     */
    private static void adopted(Stage stage) throws Exception {
        stage.createTopics("open", "ended");
        try (KafkaProducer<String, String> open = stage.producer("open", 120_000);
             KafkaProducer<String, String> ended = stage.producer("ended", 120_000)) {
            open.beginTransaction();
            open.send(new ProducerRecord<>(stage.name("open"), 0, null, "before")).get();
            ended.beginTransaction();
            ended.send(new ProducerRecord<>(stage.name("ended"), 0, null, "before")).get();
            ended.commitTransaction();
            System.out.println("restart now");
            new BufferedReader(new InputStreamReader(System.in)).readLine();
            open.send(new ProducerRecord<>(stage.name("open"), 1, null, "after")).get();
            open.commitTransaction();
            ended.beginTransaction();
            ended.send(new ProducerRecord<>(stage.name("ended"), 0, null, "after")).get();
            ended.commitTransaction();
            for (String word : List.of("open", "ended")) {
                KafkaProducer<String, String> producer = word.equals("open") ? open : ended;
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(stage.name(word), 0, null, "aborted")).get();
                producer.abortTransaction();
            }
        }
        check(List.of("after", "before"), stage.read("open", "read_committed", 2));
        check(List.of("after", "before"), stage.read("ended", "read_committed", 2));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Scenario> scenarios = Map.of(
            "commit-and-abort", Transactions::commitAndAbort,
            "fencing", Transactions::fencing,
            "timeout", Transactions::timeout,
            "classic-offsets", stage -> offsets(stage, "classic"),
            "consumer-offsets", stage -> offsets(stage, "consumer"),
            "restart", Transactions::restart,
            "adopted", Transactions::adopted);
        List<Thread> threads = new ArrayList<>();
        for (String name : Arrays.copyOfRange(arguments, 2, arguments.length)) {
            Scenario scenario = scenarios.get(name);
            Thread thread = new Thread(() -> {
                try {
                    scenario.run(new Stage(arguments[0], arguments[1] + "-" + name));
                    System.out.println("ok " + name);
                } catch (Throwable error) {
                    Throwable reason = error instanceof ExecutionException ? error.getCause() : error;
                    System.out.println("failed " + name + " " + reason + " at " + Arrays.asList(reason.getStackTrace()).toString());
                }
            }, name);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.exit(0);
    }
}

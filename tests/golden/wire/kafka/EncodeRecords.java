import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/** Reads lines of class, version and JSON, separated by tabs; prints the hex of what Kafka's own classes write. */
public final class EncodeRecords {
    private static final String[] PACKAGES = {
        "org.apache.kafka.coordinator.group.generated",
        "org.apache.kafka.coordinator.transaction.generated",
        "org.apache.kafka.coordinator.share.generated",
        "org.apache.kafka.raft.generated",
        "org.apache.kafka.server.log.remote.metadata.storage.generated",
        "org.apache.kafka.common.message"
    };

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", 3);
            short version = Short.parseShort(parts[1]);
            Message message = (Message) converter(parts[0])
                .getMethod("read", JsonNode.class, short.class)
                .invoke(null, json.readTree(parts[2]), version);
            ByteBufferAccessor written = MessageUtil.toByteBufferAccessor(message, version);
            ByteBuffer buffer = written.buffer();
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            System.out.println(HexFormat.of().formatHex(bytes));
        }
    }

    private static Class<?> converter(String name) throws ClassNotFoundException {
        for (String found : PACKAGES) {
            try {
                return Class.forName(found + "." + name + "JsonConverter");
            } catch (ClassNotFoundException next) {
                continue;
            }
        }
        throw new ClassNotFoundException(name);
    }
}

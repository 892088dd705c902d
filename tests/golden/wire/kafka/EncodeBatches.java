import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;

/** Prints a batch for each codec: its name and the hex of what Kafka's own classes write, separated by a tab. */
public final class EncodeBatches {
    public static void main(String[] arguments) {
        SimpleRecord[] records = {
            new SimpleRecord(1_700_000_000_000L, bytes("key"), bytes("value")),
            new SimpleRecord(1_700_000_000_001L, null, bytes("")),
            new SimpleRecord(1_699_999_999_000L, bytes(""), (byte[]) null, new Header[] {
                new RecordHeader("name", bytes("content")), new RecordHeader("größe", null)
            }),
            // Above the block sizes of snappy (32 KB) and LZ4 (64 KB).
            new SimpleRecord(1_700_000_000_002L, null, bytes("0123456789".repeat(10_000)))
        };
        for (Compression codec : List.of(
                Compression.NONE,
                Compression.gzip().build(),
                Compression.snappy().build(),
                Compression.lz4().build(),
                Compression.zstd().build())) {
            SimpleRecord[] chosen = codec == Compression.NONE ? List.of(records).subList(0, 3).toArray(new SimpleRecord[0]) : records;
            ByteBuffer buffer = MemoryRecords.withRecords(codec, chosen).buffer();
            byte[] batch = new byte[buffer.remaining()];
            buffer.get(batch);
            System.out.println(codec.type().name + "\t" + HexFormat.of().formatHex(batch));
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}

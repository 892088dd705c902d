import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.regex.Pattern;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;

/** Reads lines of a type and a text; writes them with what Kafka shows of the value, or with "no". Texts are ASCII, the rest as \\uXXXX. */
public class Values {
    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line; (line = in.readLine()) != null; ) {
            String[] parts = line.split("\t", -1);
            ConfigDef.Type type = ConfigDef.Type.valueOf(parts[0]);
            String shown;
            try {
                shown = "=" + escaped(ConfigDef.convertToString(ConfigDef.parseType("x", plain(parts[1]), type), type));
            } catch (ConfigException error) {
                shown = "no";
            }
            System.out.println(line + "\t" + shown);
        }
    }

    private static String plain(String text) {
        return Pattern.compile("\\\\u([0-9a-f]{4})").matcher(text)
            .replaceAll(match -> java.util.regex.Matcher.quoteReplacement("" + (char) Integer.parseInt(match.group(1), 16)));
    }

    private static String escaped(String text) {
        var out = new StringBuilder();
        for (char c : text.toCharArray()) out.append(c < 32 || c > 126 ? String.format("\\u%04x", (int) c) : "" + c);
        return out.toString();
    }
}

import com.google.re2j.Pattern;
import com.google.re2j.PatternSyntaxException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Reads names (the first line, with tabs) and then a pattern a line; writes each pattern with "no", or with the places of the names that match. */
public class Patterns {
    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, false, "UTF-8");
        List<String> names = List.of(in.readLine().split("\t", -1));
        for (String line; (line = in.readLine()) != null; ) {
            var answer = new StringBuilder();
            try {
                // As Kafka does: GroupMetadataManager compiles, TopicRegexResolver matches whole names.
                Pattern pattern = Pattern.compile(line);
                for (int i = 0; i < names.size(); i++) {
                    if (pattern.matcher(names.get(i)).matches()) answer.append(answer.isEmpty() ? "" : " ").append(i);
                }
            } catch (PatternSyntaxException error) {
                answer.append("no");
            }
            out.println(line + "\t" + answer);
        }
        out.flush();
    }
}

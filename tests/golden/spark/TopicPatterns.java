import java.nio.file.*;
import java.util.*;
import java.util.regex.*;
import java.util.stream.*;

/** Prints in which names (a line each of the second file) each regular expression (before the tab in a line of the first) is found. */
public class TopicPatterns {
    public static void main(String[] files) throws Exception {
        List<String> names = Files.readAllLines(Path.of(files[1]));
        for (String line : Files.readAllLines(Path.of(files[0]))) {
            String text = line.split("\t")[0];
            String answer;
            try {
                Pattern pattern = Pattern.compile(text);
                answer = names.stream().filter(n -> pattern.matcher(n).find()).collect(Collectors.joining(" ", "found\t", ""));
            } catch (PatternSyntaxException e) {
                answer = "refused\t" + e.getIndex() + " " + e.getDescription().lines().findFirst().get();
            }
            System.out.println(text + "\t" + answer);
        }
    }
}

package settings

import (
	"errors"
	"maps"
	"os"
	"strings"
)

// traceVariables returns the variables of traces. Those with attributes are read in this order, and later ones
// override earlier ones.
func traceVariables(t *Traces) []variable {
	// Each call of t.add returns a function that merges further attributes.
	return []variable{
		{
			name: "TRACE_COLLECTOR_SVC_ADDR", set: store(&t.Collector.Addr, parseHostPort),
			help: "host:port of a collector of OTLP over gRPC (no spans)",
		},
		{
			name: "TRACE_COLLECTOR_SVC_NAME", set: store(&t.Collector.Name, parseName),
			help: "identity of the collector; required as DESTINATION_SVC_NAME is",
		},
		{
			name: "TRACE_PROTOCOL", def: "opentelemetry", set: checked(parseTraceProtocol), lenient: true,
			help: "opentelemetry, the only protocol",
		},
		{
			name: "TRACE_SERVICE_NAME", set: t.add(func(s string) (map[string]string, error) {
				return map[string]string{"service.name": s}, nil
			}),
			help: "service.name of the spans; each of the next three overrides the attributes before it",
		},
		{
			name: "TRACE_ATTRIBUTES_PATH", set: t.add(readAttributes), lenient: true,
			help: `file with a line key="value" for each attribute, such as the labels of the pod`,
		},
		{
			name: "TRACE_EXTRA_ATTRIBUTES", set: t.add(parseAttributes),
			help: "further attributes, one key=value a line",
		},
		{
			name: "OTEL_RESOURCE_ATTRIBUTES", prefix: "-", set: t.add(parseResource),
			help: "further attributes, key=value,... or one a line",
		},
		{
			name: "TRACE_ANNOTATIONS_PATH", set: checked(parseText),
			help: "not read, as in linkerd's proxy",
		},
	}
}

// add returns a function for variable.set that adds the attributes from parse. They replace earlier
// ones with the same name.
func (t *Traces) add(parse func(string) (map[string]string, error)) func(string) error {
	return func(text string) error {
		attributes, err := parse(text)
		// Copy would panic for a nil map. Without attributes, it stays nil.
		if len(attributes) > 0 && t.Attributes == nil {
			t.Attributes = map[string]string{}
		}
		maps.Copy(t.Attributes, attributes)
		return err
	}
}

// readAttributes returns the attributes in the file at path, in the format that Kubernetes's
// downward API writes.
func readAttributes(path string) (map[string]string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseAttributes(string(content))
}

// parseAttributes returns the attributes in s, one per line. Like linkerd's proxy, it ignores lines
// that are not key=value, and quotes around values.
func parseAttributes(s string) (map[string]string, error) {
	attributes := map[string]string{}
	for line := range strings.Lines(s) {
		if key, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "="); ok {
			attributes[strings.TrimSpace(key)] = strings.Trim(value, `"`)
		}
	}
	return attributes, nil
}

// parseResource parses OTEL_RESOURCE_ATTRIBUTES, which separates attributes by commas according to
// its specification. Lines are accepted too, because linkerd's proxy reads lines.
func parseResource(s string) (map[string]string, error) {
	if !strings.Contains(strings.TrimSpace(s), "\n") {
		s = strings.ReplaceAll(s, ",", "\n")
	}
	return parseAttributes(s)
}

// parseTraceProtocol accepts only the one protocol that linkerd's proxy has left.
func parseTraceProtocol(s string) (string, error) {
	if s != "opentelemetry" {
		return "", errors.New("must be opentelemetry")
	}
	return s, nil
}

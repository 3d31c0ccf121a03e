package injector

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"
)

// Filter returns the YAML or JSON documents of in, with the proxy added to all workloads. A
// document without an injected workload is returned unchanged, with its comments. Any other
// document is encoded again in its format, with sorted keys and without comments and
// anchors. After an error no document is returned.
func (c Config) Filter(in []byte) ([]byte, []Report, error) {
	return convertDocuments(in, func(pod map[string]any) (Result, error) { return c.Inject(pod, nil) })
}

// FilterUninject returns the YAML or JSON documents of in, with the proxy removed from all
// workloads. It keeps a document without a proxy unchanged, as [Config.Filter] does.
func FilterUninject(in []byte) ([]byte, []Report, error) {
	return convertDocuments(in, func(pod map[string]any) (Result, error) {
		removed, err := Uninject(pod)
		if err == nil && !removed {
			return Result{Skipped: "it has no proxy"}, nil
		}
		return Result{}, err
	})
}

func convertDocuments(in []byte, do func(pod map[string]any) (Result, error)) ([]byte, []Report, error) {
	var out bytes.Buffer
	var reports []Report
	for i, document := range split(in) {
		converted, more, err := convertDocument(document, do)
		if err != nil {
			return nil, nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		if out.Len() > 0 && out.Bytes()[out.Len()-1] != '\n' {
			out.WriteByte('\n')
		}
		out.Write(converted)
		reports = append(reports, more...)
	}
	return out.Bytes(), reports, nil
}

// separator is the text that begins a YAML document.
const separator = "---"

// split splits a stream of YAML into its documents. Each document except the first begins
// with the separator.
func split(in []byte) (documents []string) {
	var document strings.Builder
	for line := range strings.Lines(string(bytes.TrimPrefix(in, []byte("\ufeff")))) {
		rest, ok := strings.CutPrefix(line, separator)
		if ok && (rest == "" || strings.ContainsAny(rest[:1], " \t\r\n")) {
			documents = append(documents, document.String())
			document.Reset()
		}
		document.WriteString(line)
	}
	return append(documents, document.String())
}

// convertDocument calls do for each workload in one document, and returns the changed
// document. A JSON document may contain several values.
func convertDocument(document string, do func(pod map[string]any) (Result, error)) ([]byte, []Report, error) {
	content := strings.TrimPrefix(document, separator)
	if isEmpty(content) {
		return []byte(document), nil, nil
	}
	values, isJSON := parseJSON(content)
	if !isJSON {
		text, err := yaml.YAMLToJSONStrict([]byte(content))
		if err != nil {
			return nil, nil, err
		}
		var value any
		if err := decode(text, &value); err != nil {
			return nil, nil, err
		}
		values = []any{value}
	}
	var reports []Report
	changed := false
	for _, value := range values {
		object, ok := value.(map[string]any)
		if value == nil {
			continue
		}
		if !ok {
			return nil, nil, fmt.Errorf("%.40q: must be an object of Kubernetes", fmt.Sprint(value))
		}
		err := each(object, "", 0, func(kind, name string, pod map[string]any) error {
			result, err := do(pod)
			changed = changed || err == nil && result.Skipped == ""
			reports = append(reports, Report{kind, name, result})
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	if !changed {
		return []byte(document), reports, nil
	}
	out, err := encode(values, isJSON)
	return out, reports, err
}

// isEmpty reports whether a document has only comments and directives.
func isEmpty(content string) bool {
	for line := range strings.Lines(content) {
		line = strings.TrimSpace(line)
		if line != "" && line != "..." && line[0] != '#' && line[0] != '%' {
			return false
		}
	}
	return true
}

// parseJSON returns the JSON values in content. ok is false if content is empty or not
// JSON.
func parseJSON(content string) (values []any, ok bool) {
	d := json.NewDecoder(strings.NewReader(content))
	d.UseNumber()
	for {
		var value any
		switch err := d.Decode(&value); {
		case errors.Is(err, io.EOF):
			return values, len(values) > 0
		case err != nil:
			return nil, false
		}
		values = append(values, value)
	}
}

// encode encodes values as JSON if asJSON is true. Otherwise it encodes the only value as a
// YAML document.
func encode(values []any, asJSON bool) ([]byte, error) {
	var out bytes.Buffer
	if asJSON {
		e := json.NewEncoder(&out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		for _, value := range values {
			if err := e.Encode(value); err != nil {
				return nil, err
			}
		}
		return out.Bytes(), nil
	}
	text, err := yaml.Marshal(values[0])
	out.WriteString(separator + "\n")
	out.Write(text)
	return out.Bytes(), err
}

package injector

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Filter adds the proxy to all workloads in the YAML or JSON documents in. A document without a
// workload to inject is returned unchanged, including its comments. Other documents are encoded
// again in their format, which sorts keys and drops comments and anchors. After an error, no
// document is returned.
func (c Config) Filter(in []byte) ([]byte, []Report, error) {
	return convertDocuments(in, func(w Workload, pod map[string]any) (Result, error) { return c.Inject(pod, w, nil) })
}

// FilterAnnotate adds [InjectAnnotation] to the pod templates of all workloads in the YAML or
// JSON documents in, for a webhook that injects their pods. The value becomes enabled, unless it
// is ingress. Documents without a workload stay unchanged, as with [Config.Filter].
func FilterAnnotate(in []byte) ([]byte, []Report, error) {
	return convertDocuments(in, func(_ Workload, pod map[string]any) (Result, error) {
		p, err := newPod(pod)
		if err != nil {
			return Result{}, err
		}
		if skipped := p.skip(); skipped != "" {
			return Result{Skipped: skipped}, nil
		}
		// Pods that the webhook injects anyway need no annotation.
		if mode := p.annotations[InjectAnnotation]; mode == "enabled" || mode == "ingress" {
			return Result{Skipped: fmt.Sprintf("%s is %s", InjectAnnotation, mode)}, nil
		}
		p.annotations[InjectAnnotation] = "enabled"
		p.store()
		return Result{}, nil
	})
}

// FilterUninject removes the proxy from all workloads in the YAML or JSON documents in. Documents
// without a proxy stay unchanged, as with [Config.Filter].
func FilterUninject(in []byte) ([]byte, []Report, error) {
	return convertDocuments(in, func(_ Workload, pod map[string]any) (Result, error) {
		removed, err := Uninject(pod)
		if err == nil && !removed {
			return Result{Skipped: "it has no proxy"}, nil
		}
		return Result{}, err
	})
}

// convertDocuments calls do for each workload in all documents, and returns the documents with its changes.
func convertDocuments(in []byte, do func(w Workload, pod map[string]any) (Result, error)) ([]byte, []Report, error) {
	var out bytes.Buffer
	var reports []Report
	for i, document := range split(in) {
		converted, more, err := convertDocument(document, do)
		if err != nil {
			return nil, nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		// A document may lack the line break at its end.
		if out.Len() > 0 && out.Bytes()[out.Len()-1] != '\n' {
			out.WriteByte('\n')
		}
		out.Write(converted)
		reports = append(reports, more...)
	}
	return out.Bytes(), reports, nil
}

// separator begins a YAML document.
const separator = "---"

// split splits a YAML stream into documents. Each document except the first begins with the
// separator.
func split(in []byte) (documents []string) {
	var document strings.Builder
	// A byte order mark is not part of the first document.
	for line := range strings.Lines(string(bytes.TrimPrefix(in, []byte("\ufeff")))) {
		rest, ok := strings.CutPrefix(line, separator)
		// The separator must be a whole word, and not the beginning of a longer one.
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
func convertDocument(document string, do func(w Workload, pod map[string]any) (Result, error)) ([]byte, []Report, error) {
	content := strings.TrimPrefix(document, separator)
	// An empty document must stay as it is.
	if isEmpty(content) {
		return []byte(document), nil, nil
	}
	// JSON is also YAML, but must stay JSON.
	values, isJSON := parseJSON(content)
	var warnings []string
	if !isJSON {
		value, duplicates, err := parseYAML(content)
		if err != nil {
			return nil, nil, err
		}
		values = []any{value}
		warnings = duplicates
	}
	// changed tells whether the document must be encoded again.
	var reports []Report
	changed := false
	for _, value := range values {
		object, ok := value.(map[string]any)
		// "null" is a valid document, which contains nothing.
		if value == nil {
			continue
		}
		if !ok {
			return nil, nil, fmt.Errorf("%.40q: must be an object of Kubernetes", fmt.Sprint(value))
		}
		// An object may be a list of others, so do may be called several times.
		err := each(object, "", 0, func(w Workload, pod map[string]any) error {
			result, err := do(w, pod)
			changed = changed || err == nil && result.Skipped == ""
			result.Warnings = slices.Concat(warnings, result.Warnings)
			reports = append(reports, Report{w.Kind, w.Name, result})
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

// parseYAML returns the value of a YAML document. If a mapping contains a key twice, the last value
// applies, as in kubectl, and warnings names the keys.
func parseYAML(content string) (value any, warnings []string, err error) {
	text, err := yaml.YAMLToJSON([]byte(content))
	if err != nil {
		return nil, nil, err
	}
	// Strict parsing only finds repeated keys, because the document is valid.
	if _, err := yaml.YAMLToJSONStrict([]byte(content)); err != nil {
		warnings = []string{"the last value of a repeated key applies: " + err.Error()}
	}
	err = decode(text, &value)
	return value, warnings, err
}

// isEmpty reports whether a document consists of comments and directives.
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
	// Numbers keep their text, because float64 would lose digits.
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
	// YAML has only one value in each document.
	text, err := yaml.Marshal(values[0])
	out.WriteString(separator + "\n")
	out.Write(text)
	return out.Bytes(), err
}

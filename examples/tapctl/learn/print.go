package learn

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Write writes one ServiceProfile for each observed service to w, as YAML documents. A comment in
// each document tells how many routes, requests and failures there were, and the longest
// duration. Write returns the number of documents.
func (p *Profiles) Write(w io.Writer) (int, error) {
	n := 0
	for _, name := range slices.Sorted(maps.Keys(p.hosts)) {
		text, err := p.hosts[name].document(name)
		if err != nil {
			return n, err
		}
		// Without a route, there is no profile to write.
		if text == nil {
			continue
		}
		// Documents after the first are separated.
		if n++; n > 1 {
			text = append([]byte("---\n"), text...)
		}
		if _, err := w.Write(text); err != nil {
			return n, err
		}
	}
	return n, nil
}

// serviceProfile and the following types have those fields of linkerd's ServiceProfile
// that [Profiles.Write] writes.
type (
	serviceProfile struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Metadata   metadata `json:"metadata"`
		Spec       spec     `json:"spec"`
	}
	metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace,omitempty"`
	}
	spec struct {
		Routes []routeSpec `json:"routes"`
	}
	routeSpec struct {
		Name      string    `json:"name"`
		Condition condition `json:"condition"`
	}
	condition struct {
		Method    string `json:"method"`
		PathRegex string `json:"pathRegex"`
	}
)

// document returns the ServiceProfile for the service with the given name as YAML, or nil if
// there are no routes in h.
func (h *host) document(name string) ([]byte, error) {
	doc := serviceProfile{APIVersion: "linkerd.io/v1alpha2", Kind: "ServiceProfile", Metadata: metadata{name, namespace(name)}}
	total := &route{}
	// each visits the routes in the order in which linkerd compares them.
	h.root.each(nil, func(path []string, method string, r *route) {
		text, pattern := written(path)
		doc.Spec.Routes = append(doc.Spec.Routes, routeSpec{Name: method + " " + text, Condition: condition{method, pattern}})
		total.count += r.count
		total.failed += r.failed
		total.worst = max(total.worst, r.worst)
	})
	if len(doc.Spec.Routes) == 0 {
		return nil, nil
	}
	body, err := yaml.Marshal(doc)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %d routes of %d requests that were seen: %d failed, the slowest took %v.\n",
		len(doc.Spec.Routes), total.count, total.failed, total.worst.Round(time.Millisecond))
	b.WriteString("# Routes without requests are missing. Add isRetryable and timeout where needed.\n")
	b.Write(body)
	return b.Bytes(), nil
}

// namespace returns the namespace of a Kubernetes name such as
// web.default.svc.cluster.local. It returns "" for other names.
func namespace(name string) string {
	if labels := strings.Split(name, "."); len(labels) > 2 && labels[2] == "svc" {
		return labels[1]
	}
	return ""
}

// written returns path in two forms. The result text, such as /books/{id}, is for a route name.
// The result pattern, such as /books/[^/]*, is a regular expression that matches the route's
// paths.
func written(path []string) (text, pattern string) {
	var t, p strings.Builder
	for _, segment := range path {
		// wildcard stands for a segment that differs between requests.
		if segment == wildcard {
			t.WriteString("/{id}")
			p.WriteString("/[^/]*")
			continue
		}
		t.WriteString("/" + segment)
		p.WriteString("/" + regexp.QuoteMeta(segment))
	}
	return t.String(), p.String()
}

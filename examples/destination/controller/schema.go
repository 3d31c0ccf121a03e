package controller

import (
	"fmt"
	"reflect"

	"go.yaml.in/yaml/v3"
)

// The structs below have the fields of the file. A leaf is the text of a scalar with
// its line. It is parsed later, so that each error has a line.

type fileYAML struct {
	Destinations map[text]destinationYAML `yaml:"destinations"`
}

type destinationYAML struct {
	Exists    text           `yaml:"exists"`
	Labels    map[text]text  `yaml:"labels"`
	Endpoints []endpointYAML `yaml:"endpoints"`
	Profile   *profileYAML   `yaml:"profile"`
}

type endpointYAML struct {
	At         line          `yaml:",inline"`
	Addr       text          `yaml:"addr"`
	Weight     text          `yaml:"weight"`
	Labels     map[text]text `yaml:"labels"`
	Protocol   text          `yaml:"protocol"`
	Identity   text          `yaml:"identity"`
	ServerName text          `yaml:"server_name"`
	Authority  text          `yaml:"authority"`
	Inbound    text          `yaml:"opaque_port"`
}

type profileYAML struct {
	Name     text          `yaml:"name"`
	Opaque   text          `yaml:"opaque"`
	Routes   []routeYAML   `yaml:"routes"`
	Splits   []splitYAML   `yaml:"splits"`
	Budget   *budgetYAML   `yaml:"retry_budget"`
	Endpoint *endpointYAML `yaml:"endpoint"`
}

type routeYAML struct {
	At        line          `yaml:",inline"`
	Name      text          `yaml:"name"`
	Labels    map[text]text `yaml:"labels"`
	Match     *matchYAML    `yaml:"match"`
	Classes   []classYAML   `yaml:"response_classes"`
	Retryable text          `yaml:"retryable"`
	RetryAll  text          `yaml:"retry_non_idempotent"`
	Timeout   text          `yaml:"timeout"`
}

type matchYAML struct {
	At     line        `yaml:",inline"`
	Method text        `yaml:"method"`
	Path   text        `yaml:"path"`
	All    []matchYAML `yaml:"all"`
	Any    []matchYAML `yaml:"any"`
	Not    *matchYAML  `yaml:"not"`
}

type classYAML struct {
	At      line `yaml:",inline"`
	Status  text `yaml:"status"`
	Failure text `yaml:"is_failure"`
}

type splitYAML struct {
	At        line `yaml:",inline"`
	Authority text `yaml:"authority"`
	Weight    text `yaml:"weight"`
}

type budgetYAML struct {
	Ratio        text `yaml:"ratio"`
	MinPerSecond text `yaml:"min_per_second"`
	TTL          text `yaml:"ttl"`
}

// text is an unparsed scalar. Its line is 0 if the field is missing.
type text struct {
	value string
	line  int
}

// given reports whether the field is in the file.
func (t text) given() bool { return t.line > 0 }

// UnmarshalYAML accepts any scalar.
func (t *text) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: want a single value, not a list or a mapping", n.Line)}}
	}
	*t = text{value: n.Value, line: n.Line}
	return nil
}

// line is the line on which a mapping begins. It is used as an inlined field: the YAML
// package passes it the node of the mapping, and decodes the other fields as usual.
type line struct{ n int }

// UnmarshalYAML sets the line at its first call. Later calls are for merged mappings.
func (l *line) UnmarshalYAML(n *yaml.Node) error {
	if l.n == 0 {
		l.n = n.Line
	}
	return nil
}

// fieldsOf returns the keys of a struct of the file. typeName is the name of the struct
// in the errors of the YAML package.
func fieldsOf(typeName string) []string {
	for _, v := range []any{
		fileYAML{}, destinationYAML{}, endpointYAML{}, profileYAML{}, routeYAML{},
		matchYAML{}, classYAML{}, splitYAML{}, budgetYAML{},
	} {
		t := reflect.TypeOf(v)
		if t.String() != typeName {
			continue
		}
		var names []string
		for field := range t.Fields() {
			if name := field.Tag.Get("yaml"); name != ",inline" {
				names = append(names, name)
			}
		}
		return names
	}
	return nil
}

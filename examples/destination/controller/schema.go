package controller

import (
	"fmt"
	"reflect"

	"go.yaml.in/yaml/v3"
)

// fileYAML has the fields of the YAML file, and the following structs have the fields of its
// parts. Single values are decoded as text with their line, and parsed later, so that each
// error can report its line.
type fileYAML struct {
	Destinations map[text]destinationYAML `yaml:"destinations"`

	Servers         []serverYAML `yaml:"servers"`
	DefaultPolicy   text         `yaml:"defaultInboundPolicy"`
	ClusterNetworks []text       `yaml:"clusterNetworks"`
}

type destinationYAML struct {
	Exists    text           `yaml:"exists"`
	Labels    map[text]text  `yaml:"labels"`
	Endpoints []endpointYAML `yaml:"endpoints"`
	Profile   *profileYAML   `yaml:"profile"`
	Policy    *policyYAML    `yaml:"policy"`
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

// text is a single value of the file that is not parsed yet. Its line is 0 if the field is
// missing.
type text struct {
	value string
	line  int
}

// given reports whether the field is in the file.
func (t text) given() bool { return t.line > 0 }

// UnmarshalYAML is part of [yaml.Unmarshaler]. It accepts any single value, such as a
// number, and rejects lists and mappings.
func (t *text) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: want a single value, not a list or a mapping", n.Line)}}
	}
	*t = text{value: n.Value, line: n.Line}
	return nil
}

// line is the number of the line on which a mapping of the file begins. The struct for a mapping
// has an inlined field of this type. The YAML package calls the method UnmarshalYAML of this
// field with the node of the mapping, which contains the line number.
type line struct{ n int }

// UnmarshalYAML is part of [yaml.Unmarshaler]. It records the line of n at its first call.
// Later calls have no effect, because they are for mappings that a merge key adds.
func (l *line) UnmarshalYAML(n *yaml.Node) error {
	if l.n == 0 {
		l.n = n.Line
	}
	return nil
}

// fieldsOf returns the names of the fields that a mapping of the file may have. typeName is
// the name of the Go type of the mapping, as it occurs in errors of the YAML package.
func fieldsOf(typeName string) []string {
	for _, v := range append([]any{
		fileYAML{}, destinationYAML{}, endpointYAML{}, profileYAML{}, routeYAML{},
		matchYAML{}, classYAML{}, splitYAML{}, budgetYAML{},
	}, policyTypes()...) {
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

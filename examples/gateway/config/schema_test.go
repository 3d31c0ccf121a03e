package config

import (
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write gateway.schema.json")

const schemaFile = "../gateway.schema.json"

// The JSON Schema is made from the types and their comments:
//
//	go test ./examples/gateway/config -run TestSchema -update
func TestSchemaIsCurrent(t *testing.T) {
	s := schemas{comments: fieldComments(t), defs: map[string]any{}}
	root := s.of(reflect.TypeFor[Config](), "")
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "gateway"
	root["$defs"] = s.defs
	text, err := json.MarshalIndent(root, "", "  ")
	require.NoError(t, err)
	text = append(text, '\n')
	if *update {
		require.NoError(t, os.WriteFile(schemaFile, text, 0o600))
	}
	now, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	require.Equal(t, string(text), string(now), "run this test with -update")
}

type schemas struct {
	comments map[string]string // "Type.Field" and "Type"
	defs     map[string]any
}

type object = map[string]any

// scalars are the patterns and the examples of the types with a syntax of their own.
var scalars = map[string]object{
	"Name":        {"pattern": "^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$"},
	"Duration":    {"pattern": `^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$|^0$`},
	"Address":     {"pattern": ":[0-9]+$"},
	"HostPort":    {"pattern": "^.+:[0-9]+$"},
	"Hostname":    {"pattern": `^(\*\.)?[A-Za-z0-9_.-]+$`},
	"Prefix":      {"pattern": "^[0-9a-fA-F.:]+(/[0-9]+)?$"},
	"HeaderName":  {"pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"},
	"HeaderValue": {"pattern": `^[^\u0000-\u0008\u000a-\u001f\u007f]*$`},
	"Method":      {"pattern": `^\*$|^[A-Z]+(-[A-Z]+)*$`},
	"Path":        {"pattern": "^/[^?#]*$"},
	"Pattern":     {"pattern": "^/"},
	"Origin":      {"pattern": `^\*$|^https?://[^/]+$`},
	"URL":         {"pattern": "^https?://.+"},
	"Regex":       {"format": "regex"},
	"Text":        {},
	"File":        {"minLength": 1},
}

func (s schemas) of(t reflect.Type, tag reflect.StructTag) object {
	if t.Kind() == reflect.Pointer {
		return s.of(t.Elem(), tag)
	}
	_, custom := reflect.TypeAssert[scalar](reflect.New(t))
	switch {
	case t == reflect.TypeFor[Status]():
		return object{"type": "integer", "minimum": 200, "maximum": 599}
	case custom:
		o := object{"type": "string"}
		known, ok := scalars[t.Name()]
		if !ok {
			panic("no schema of " + t.Name())
		}
		maps.Copy(o, known)
		if t.Name() == "Text" || t.Name() == "HeaderValue" {
			o["type"] = []string{"string", "number", "boolean"} // the text of the scalar is used
		}
		return o
	}
	switch t.Kind() {
	case reflect.Struct:
		return s.ofStruct(t)
	case reflect.Slice:
		return object{"type": "array", "items": s.of(t.Elem(), tag)}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int:
		return object{"type": "integer", "minimum": number(tag, "min"), "maximum": number(tag, "max")}
	case reflect.Float64:
		return object{"type": "number", "minimum": number(tag, "min"), "maximum": number(tag, "max")}
	}
	words := tag.Get("enum")
	if words == "" {
		return object{"type": "string", "minLength": 1}
	}
	var all []any
	for w := range strings.SplitSeq(words, ",") {
		all = append(all, w)
		if f, err := strconv.ParseFloat(w, 64); err == nil {
			all = append(all, f) // YAML has no quotes around it
		}
	}
	return object{"enum": all}
}

func number(tag reflect.StructTag, name string) float64 {
	f, err := strconv.ParseFloat(tag.Get(name), 64)
	if err != nil {
		panic(err)
	}
	return f
}

func (s schemas) ofStruct(t reflect.Type) object {
	ref := object{"$ref": "#/$defs/" + t.Name()}
	root := t == reflect.TypeFor[Config]()
	if _, known := s.defs[t.Name()]; known {
		return ref
	}
	properties, required := object{}, []string{}
	o := object{"type": "object", "description": s.comments[t.Name()], "additionalProperties": false, "properties": properties}
	if !root {
		s.defs[t.Name()] = o
	}
	for _, f := range fieldsOf(t) {
		p := s.of(f.Type, f.Tag)
		p["description"] = s.comments[t.Name()+"."+f.Name]
		if text, ok := f.Tag.Lookup("default"); ok {
			p["default"] = text
			if kind := p["type"]; kind == "integer" || kind == "number" {
				p["default"] = json.Number(text)
			}
		}
		properties[f.Tag.Get("yaml")] = p
		if f.Tag.Get("is") == "required" {
			required = append(required, f.Tag.Get("yaml"))
		}
	}
	if len(required) > 0 {
		o["required"] = required
	}
	if u, ok := reflect.TypeAssert[union](reflect.New(t)); ok {
		var one []any
		for _, name := range u.oneOf() {
			one = append(one, object{"required": []string{name}})
		}
		o["oneOf"] = one
	}
	if root {
		return o
	}
	return ref
}

// fieldComments returns the comments of the types and fields of this package.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	comments := map[string]string{}
	for _, name := range []string{"config.go", "listener.go", "service.go", "route.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.TYPE {
				continue
			}
			for _, spec := range gen.Specs {
				spec := spec.(*ast.TypeSpec)
				comments[spec.Name.Name] = oneLine(gen.Doc)
				body, ok := spec.Type.(*ast.StructType)
				if !ok {
					continue
				}
				for _, f := range body.Fields.List {
					if f.Tag != nil {
						require.NotEmpty(t, oneLine(f.Doc), "%s.%s has no comment", spec.Name.Name, f.Names[0].Name)
						comments[spec.Name.Name+"."+f.Names[0].Name] = oneLine(f.Doc)
					}
				}
			}
		}
	}
	return comments
}

func oneLine(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }

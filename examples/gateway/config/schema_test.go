package config

import (
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/yamlfile"
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
	"Name":            {"pattern": "^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$"},
	"Duration":        {"pattern": `^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$|^0$`},
	"Address":         {"pattern": ":[0-9]+$"},
	"EndpointAddress": {"pattern": "^.+:[0-9]+$|^unix:/"},
	"HostPort":        {"pattern": "^.+:[0-9]+$"},
	"Hostname":        {"pattern": `^(\*\.)?[A-Za-z0-9_.-]+$`},
	"Prefix":          {"pattern": "^[0-9a-fA-F.:]+(/[0-9]+)?$"},
	"HeaderName":      {"pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"},
	"HeaderValue":     {"pattern": `^[^\u0000-\u0008\u000a-\u001f\u007f]*$`},
	"Method":          {"pattern": `^\*$|^[A-Z]+(-[A-Z]+)*$`},
	"Path":            {"pattern": "^/[^?#]*$"},
	"Pattern":         {"pattern": "^/"},
	"Origin":          {"pattern": `^\*$|^https?://[^/]+$`},
	"URL":             {"pattern": "^https?://.+"},
	"Regex":           {"format": "regex"},
	"Text":            {},
	"File":            {"minLength": 1},
}

func (s schemas) of(t reflect.Type, tag reflect.StructTag) object {
	if t.Kind() == reflect.Pointer {
		return s.of(t.Elem(), tag)
	}
	if items, ok := reflect.TypeAssert[interface{ itemType() reflect.Type }](reflect.New(t)); ok {
		return s.ofStruct(items.itemType(), "Defaults")
	}
	_, custom := reflect.TypeAssert[scalar](reflect.New(t))
	switch {
	case t == reflect.TypeFor[Status]():
		return object{"type": numbers("integer"), "minimum": 200, "maximum": 599, "pattern": variables}
	case custom:
		o := object{"type": "string"}
		known, ok := scalars[t.Name()]
		if !ok {
			panic("no schema of " + t.Name())
		}
		maps.Copy(o, known)
		if pattern, ok := known["pattern"].(string); ok {
			o["pattern"] = pattern + "|" + variables
		}
		if t.Name() == "Text" || t.Name() == "HeaderValue" {
			o["type"] = []string{"string", "number", "boolean"} // the text of the scalar is used
		}
		return o
	}
	switch t.Kind() {
	case reflect.Struct:
		return s.ofStruct(t, "")
	case reflect.Slice:
		return object{"type": "array", "items": s.of(t.Elem(), tag)}
	case reflect.Bool:
		return object{"type": numbers("boolean"), "pattern": variables}
	case reflect.Int:
		return object{"type": numbers("integer"), "pattern": variables, "minimum": number(tag, "min"), "maximum": number(tag, "max")}
	case reflect.Float64:
		return object{"type": numbers("number"), "pattern": variables, "minimum": number(tag, "min"), "maximum": number(tag, "max")}
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
	return object{"anyOf": []any{object{"enum": all}, object{"type": "string", "pattern": variables}}}
}

// variables is the pattern of a text with a variable of the environment.
const variables = `\$\{`

// numbers returns the types of a value that may be a variable instead.
func numbers(kind string) []string { return []string{kind, "string"} }

func number(tag reflect.StructTag, name string) float64 {
	f, err := strconv.ParseFloat(tag.Get(name), 64)
	if err != nil {
		panic(err)
	}
	return f
}

// ofStruct returns the schema of the struct type t. If prefix is not empty, it is the schema of a
// mapping that has some fields of t, and prefix is the start of its name.
func (s schemas) ofStruct(t reflect.Type, prefix string) object {
	name := prefix + t.Name()
	ref := object{"$ref": "#/$defs/" + name}
	root := t == reflect.TypeFor[Config]()
	if _, known := s.defs[name]; known {
		return ref
	}
	properties, required := object{}, []string{}
	o := object{"type": "object", "description": s.comments[t.Name()], "additionalProperties": false, "properties": properties}
	if !root {
		s.defs[name] = o
	}
	for _, f := range yamlfile.FieldsOf(t) {
		p := s.of(f.Type, f.Tag)
		owner := t
		for _, i := range f.Index[:len(f.Index)-1] { // an embedded struct
			owner = owner.Field(i).Type
		}
		p["description"] = s.comments[owner.Name()+"."+f.Name]
		if text, ok := f.Tag.Lookup("default"); ok {
			p["default"] = text
			switch f.Type.Kind() {
			case reflect.Int, reflect.Float64:
				p["default"] = json.Number(text)
			case reflect.Bool:
				p["default"] = text == "true"
			default:
			}
		}
		properties[f.Tag.Get("yaml")] = p
		if f.Tag.Get("is") == "required" {
			required = append(required, f.Tag.Get("yaml"))
		}
	}
	if prefix != "" {
		return ref
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
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
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

package yamlfile

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

// Decoder decodes a document into Go values, whose types define the document's format. Struct
// fields use these tags:
//
//	yaml      its name in the document
//	is        "required", if it must be present
//	default   its value, as text, if it is absent
//	enum      the words that a string may be; ",a,b" also allows an empty one
//	min, max  limits for a number or a duration
//	list      what the list contains, for the mistake that a field is not a list
//
// A null field counts as absent. An absent struct still gets its fields' defaults, unless it is a
// pointer. A field At of type [Value] receives its struct's own node, so that mistakes can be
// reported there later.
//
// A Decoder is not safe for concurrent use. Its own fields are optional. In their arguments, target is
// a pointer to the value to set.
type Decoder struct {
	// Parse returns a function that sets target from a scalar's text, or nil if the type does not
	// have a syntax of its own. The function's errors should say only what is allowed, such as
	// "an HTTP method in upper case", because "want" is put in front of them.
	Parse func(target any) func(text string) error
	// Special decodes v itself, or returns false.
	Special func(v Value, target any) bool
	// OneOf returns the names of a struct's alternative fields. Exactly one must be present.
	OneOf func(target any) []string
	// Check reports violations of rules that tags cannot express. It is called for each struct
	// whose fields are all valid.
	Check func(v Value, target any)
	// Expand replaces variables in a scalar's text. Its errors are worded like those of Parse.
	Expand func(text string) (string, error)
	// Empty permits empty strings, except those with the tag is:"required".
	Empty bool

	defaults map[reflect.Type]reflect.Value // structs with their defaults
	shared   map[*yaml.Node]reflect.Value   // the values of nodes that occur in several places
}

// Decode decodes v into target, a pointer, and adds mistakes to v's file.
func (d *Decoder) Decode(v Value, target any) { d.decode(v, reflect.ValueOf(target).Elem(), "") }

// decode decodes v into target. tag belongs to the struct field that holds target.
func (d *Decoder) decode(v Value, target reflect.Value, tag reflect.StructTag) {
	if v.TooDeep() {
		return
	}
	// The user's rules come first, then those for the kind of the type.
	pointer := target.Addr().Interface()
	if d.Special != nil && d.Special(v, pointer) {
		return
	}
	if parse := d.parserOf(pointer); parse != nil {
		d.Scalar(v, parse)
		return
	}
	switch target.Kind() {
	case reflect.Pointer:
		target.Set(reflect.New(target.Type().Elem()))
		d.decode(v, target.Elem(), tag)
	case reflect.Struct:
		d.decodeStruct(v, target)
	case reflect.Slice:
		if v.Is(yaml.SequenceNode, cmp.Or(tag.Get("list"), "a list")) {
			target.Set(reflect.MakeSlice(target.Type(), len(v.Node.Content), len(v.Node.Content)))
			for i := range v.Node.Content {
				if item := v.Item(i); item.IsNull() {
					item.Failf("empty: write a value, or take it out")
				} else {
					d.decode(item, target.Index(i), tag)
				}
			}
		}
	case reflect.Map:
		target.Set(reflect.MakeMap(target.Type()))
		v.Each(func(key, item Value) {
			// An element of a map cannot be set in place, so it is decoded into a new value.
			member := reflect.New(target.Type().Elem()).Elem()
			if item.IsNull() {
				d.setDefaults(member)
			} else {
				d.decode(item, member, tag)
			}
			target.SetMapIndex(reflect.ValueOf(key.Node.Value), member)
		})
	default:
		d.Scalar(v, func(text string) error { return d.parsePlain(target, tag, text) })
	}
}

// parserOf returns the function with which Decoder.Parse parses a value of target's type, or nil.
func (d *Decoder) parserOf(target any) func(text string) error {
	if d.Parse == nil {
		return nil
	}
	return d.Parse(target)
}

// Scalar calls parse with v's text. It adds a mistake if v is a list, a mapping or null, or if
// parse fails.
func (d *Decoder) Scalar(v Value, parse func(string) error) {
	switch {
	case !v.Is(yaml.ScalarNode, "a single value"):
	case v.IsNull():
		v.Failf("want a value")
	default:
		var err error
		text := v.Node.Value
		if d.Expand != nil {
			text, err = d.Expand(text)
		}
		if err == nil {
			err = parse(text)
		}
		if err != nil {
			v.Failf("want %v", err)
		}
	}
}

// parsePlain parses text as a string, a bool, a number or a duration and stores it in v. tag says
// what is allowed, and so do the errors.
func (d *Decoder) parsePlain(v reflect.Value, tag reflect.StructTag, text string) error {
	if v.Type() == reflect.TypeFor[time.Duration]() {
		return parseDuration(v, tag, text)
	}
	switch v.Kind() {
	case reflect.Bool:
		if text != "true" && text != "false" { // YAML 1.2: no yes, no, on, off
			return errors.New("true or false")
		}
		v.SetBool(text == "true")
	case reflect.String:
		// words begins with a comma if the empty text is one of the words. The error does not list it.
		words, limited := tag.Lookup("enum")
		switch {
		case limited && !slices.Contains(strings.Split(words, ","), text):
			return fmt.Errorf("one of %s", strings.ReplaceAll(strings.TrimPrefix(words, ","), ",", ", "))
		case !limited && text == "" && (!d.Empty || tag.Get("is") == "required"):
			return errors.New("a text that is not empty")
		}
		v.SetString(text)
	default:
		return parseNumber(v, tag, text)
	}
	return nil
}

// parseNumber parses a number. Only unsigned ones may do without the tags min and max.
func parseNumber(v reflect.Value, tag reflect.StructTag, text string) error {
	switch v.Kind() {
	case reflect.Int:
		i, err := strconv.Atoi(text)
		if err != nil || !InRange(tag, float64(i)) {
			return fmt.Errorf("a whole number from %s to %s", tag.Get("min"), tag.Get("max"))
		}
		v.SetInt(int64(i))
	case reflect.Uint16, reflect.Uint32:
		low := cmp.Or(tag.Get("min"), "0")
		// Without the tag, the type's largest number is the limit.
		high := cmp.Or(tag.Get("max"), strconv.FormatUint(math.MaxUint64>>(64-v.Type().Bits()), 10))
		i, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil || float64(i) < bound(low) || float64(i) > bound(high) {
			return fmt.Errorf("a whole number from %s to %s", low, high)
		}
		v.SetUint(i)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || !InRange(tag, f) {
			return fmt.Errorf("a number from %s to %s", tag.Get("min"), tag.Get("max"))
		}
		v.SetFloat(f)
	default:
		panic("yamlfile: a field of type " + v.Type().String())
	}
	return nil
}

// parseDuration parses a duration. Without the tag min, it must be more than 0.
func parseDuration(v reflect.Value, tag reflect.StructTag, text string) error {
	d, err := time.ParseDuration(text)
	low, lowErr := time.ParseDuration(tag.Get("min"))
	high, highErr := time.ParseDuration(tag.Get("max"))
	// A missing tag is an error of ParseDuration.
	switch {
	case lowErr != nil && (err != nil || d <= 0):
		return errors.New("a duration of more than 0, such as 250ms or 10s")
	case highErr == nil && (err != nil || d < low || d > high):
		return fmt.Errorf("a duration from %s to %s", tag.Get("min"), tag.Get("max"))
	case lowErr == nil && (err != nil || d < low):
		return fmt.Errorf("a duration of at least %s", tag.Get("min"))
	}
	v.SetInt(int64(d))
	return nil
}

// InRange reports whether f is within the tags min and max.
func InRange(tag reflect.StructTag, f float64) bool {
	return bound(tag.Get("min")) <= f && f <= bound(tag.Get("max"))
}

// bound parses a limit in a tag. It panics if the tag is missing, which is a mistake in the program.
func bound(text string) float64 {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic("yamlfile: a number without min and max")
	}
	return f
}

// decodeStruct decodes the mapping v into the struct target.
func (d *Decoder) decodeStruct(v Value, target reflect.Value) {
	p := planOf(target.Type())
	d.setDefaults(target)
	// p.position is the index of the field At.
	if p.position != nil {
		target.FieldByIndex(p.position).Set(reflect.ValueOf(v))
	}
	if !v.Is(yaml.MappingNode, "a mapping") {
		return
	}
	// Check runs only if the fields are valid, because it relies on them.
	mistakes := len(v.Mistakes)
	v.Each(func(key, item Value) {
		f, ok := p.byName[key.Node.Value]
		switch {
		case !ok:
			key.unknown(sortedNames(p.byName))
		case !item.IsNull():
			d.decodeField(item, target.FieldByIndex(f.Index), f.Tag)
		}
	})
	d.checkPresence(v, p, target)
	if d.Check != nil && len(v.Mistakes) == mistakes {
		d.Check(v, target.Addr().Interface())
	}
}

// decodeField decodes v into target, a field with the given tag. It decodes a node of File.Paths once, because
// thousands of structs may share it. They then also share what its value points to.
func (d *Decoder) decodeField(v Value, target reflect.Value, tag reflect.StructTag) {
	if value, ok := d.shared[v.Node]; ok {
		target.Set(value)
		return
	}
	mistakes := len(v.Mistakes)
	d.decode(v, target, tag)
	if v.Paths[v.Node] == "" || len(v.Mistakes) > mistakes {
		return
	}
	if d.shared == nil {
		d.shared = make(map[*yaml.Node]reflect.Value)
	}
	value := reflect.New(target.Type()).Elem()
	value.Set(target)
	d.shared[v.Node] = value
}

// checkPresence reports required fields of target that are missing in v, and alternative fields
// if not exactly one of them is present.
func (d *Decoder) checkPresence(v Value, p *plan, target reflect.Value) {
	for _, name := range p.required {
		if !v.Has(name) {
			v.At(name).Failf("missing: %s is required", name)
		}
	}
	if d.OneOf == nil {
		return
	}
	// OneOf sees the target itself, because the alternatives depend on its type.
	names := d.OneOf(target.Addr().Interface())
	count := 0
	for _, name := range names {
		if v.Has(name) {
			count++
		}
	}
	if len(names) == 0 || count == 1 {
		return
	}
	want := strings.Join(names, ", ")
	if count == 0 {
		v.Failf("missing: want exactly one of %s", want)
		return
	}
	present := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !v.Has(name) })
	v.Failf("%s exclude each other: want exactly one of %s", strings.Join(present, " and "), want)
}

// setDefaults sets target, if it is a struct, to the defaults in its fields' tags.
func (d *Decoder) setDefaults(target reflect.Value) {
	// A struct with a syntax of its own has no fields with defaults.
	if target.Kind() != reflect.Struct || d.parserOf(target.Addr().Interface()) != nil {
		return
	}
	defaults, ok := d.defaults[target.Type()]
	if !ok {
		defaults = reflect.New(target.Type()).Elem()
		for _, f := range planOf(target.Type()).fields {
			d.setDefault(f, defaults.FieldByIndex(f.Index))
		}
		if d.defaults == nil {
			d.defaults = make(map[reflect.Type]reflect.Value)
		}
		d.defaults[target.Type()] = defaults
	}
	target.Set(defaults)
}

// setDefault sets target, which is the field f, to its default.
func (d *Decoder) setDefault(f reflect.StructField, target reflect.Value) {
	text, ok := f.Tag.Lookup("default")
	if !ok {
		d.setDefaults(target)
		return
	}
	var err error
	if parse := d.parserOf(target.Addr().Interface()); parse != nil {
		err = parse(text)
	} else {
		err = d.parsePlain(target, f.Tag, text)
	}
	if err != nil {
		panic("yamlfile: the default of " + f.Name + ": " + err.Error())
	}
}

// plan is what a Decoder reads from the definition of a struct type.
type plan struct {
	fields   []reflect.StructField // those with a yaml tag
	byName   map[string]*reflect.StructField
	required []string // names of required fields
	position []int    // index of the field At, or nil
}

// plans caches the results of planOf, by struct type.
var plans sync.Map //nolint:gochecknoglobals // cache

// planOf returns what the decoder has to know about the struct type t: its fields by their names in the file.
func planOf(t reflect.Type) *plan {
	if cached, ok := plans.Load(t); ok {
		return cached.(*plan) //nolint:forcetypeassert,errcheck // stored below
	}
	p := &plan{byName: make(map[string]*reflect.StructField)}
	for _, f := range reflect.VisibleFields(t) {
		name := f.Tag.Get("yaml")
		if name == "" {
			continue
		}
		p.fields = append(p.fields, f)
		p.byName[name] = &f
		if f.Tag.Get("is") == "required" {
			p.required = append(p.required, name)
		}
	}
	if f, ok := t.FieldByName("At"); ok && f.Type == reflect.TypeFor[Value]() {
		p.position = f.Index
	}
	plans.Store(t, p)
	return p
}

// FieldsOf returns t's fields with a yaml tag.
func FieldsOf(t reflect.Type) []reflect.StructField { return planOf(t).fields }

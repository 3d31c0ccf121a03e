package yamlfile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func TestDecoder(t *testing.T) {
	type inner struct {
		At    Value
		Count int `yaml:"count" min:"1" max:"9" default:"3"`
	}
	type outer struct {
		inner

		Name  string           `yaml:"name" is:"required"`
		Kind  string           `yaml:"kind" enum:"a,b" default:"a"`
		Also  string           `yaml:"also" enum:",a,b"`
		Port  uint16           `yaml:"port" min:"1"`
		Wait  time.Duration    `yaml:"wait"`
		Keep  time.Duration    `yaml:"keep" min:"1s" max:"1m" default:"10s"`
		Least time.Duration    `yaml:"least" min:"10ms"`
		Part  *float64         `yaml:"part" min:"0" max:"1"`
		Items []inner          `yaml:"items"`
		ByKey map[string]inner `yaml:"byKey"`
		On    bool             `yaml:"on"`
	}
	decode := func(text string) (o outer, err error) {
		v := parsed(t, text)
		(&Decoder{Empty: true}).Decode(v, &o)
		return o, Join(v.Mistakes)
	}
	o, err := decode("name: n\nalso: ''\npart: 0.5\nwait: 1s\nitems: [{}, {count: 9}]\nbyKey: {x: , y: {count: 1}}\non: true\nport:\n")
	require.NoError(t, err)
	require.Equal(t, "items[1]", o.Items[1].At.Path)
	require.Equal(t, []any{3, "n", "a", time.Second, 10 * time.Second, 0.5, 3, 9, 3, 1, true},
		[]any{o.Count, o.Name, o.Kind, o.Wait, o.Keep, *o.Part, o.Items[0].Count, o.Items[1].Count, o.ByKey["x"].Count, o.ByKey["y"].Count, o.On})
	for in, want := range map[string]string{
		"{}":                     "f:1:1: name: missing: name is required",
		"name: ''":               "f:1:7: name: want a text that is not empty",
		"{name: n, kind: ''}":    "f:1:17: kind: want one of a, b",
		"{name: n, also: c}":     `f:1:17: also "c": want one of a, b`,
		"{name: n, port: 0}":     `f:1:17: port "0": want a whole number from 1 to 65535`,
		"{name: n, port: 65536}": `f:1:17: port "65536": want a whole number from 1 to 65535`,
		"{name: n, count: 10}":   `f:1:18: count "10": want a whole number from 1 to 9`,
		"{name: n, wait: 0s}":    `f:1:17: wait "0s": want a duration of more than 0, such as 250ms or 10s`,
		"{name: n, keep: 61s}":   `f:1:17: keep "61s": want a duration from 1s to 1m`,
		"{name: n, least: 9ms}":  `f:1:18: least "9ms": want a duration of at least 10ms`,
		"{name: n, part: .nan}":  `f:1:17: part ".nan": want a number from 0 to 1`,
		"{name: n, part: NaN}":   `f:1:17: part "NaN": want a number from 0 to 1`,
		"{name: n, items: {}}":   "f:1:18: items: want a list, not a mapping",
		"{name: n, items: [~]}":  "f:1:19: items[0]: empty: write a value, or take it out",
		"{name: n, byKey: []}":   "f:1:18: byKey: want a mapping, not a list",
		"{name: n, on: yes}":     `f:1:15: on "yes": want true or false`,
		"{name: n, no: 1}":       "f:1:11: no: unknown field: there are also, byKey, count, items, keep, kind, least, name, on, part, port, wait",
		"{name: n, name: m}":     "f:1:11: name: given twice, first in line 1: take one out",
		"[]":                     "f:1:1: want a mapping, not a list",
	} {
		_, err := decode(in)
		require.EqualError(t, err, want, in)
	}
}

// A key that occurs twice is a mistake in small and in large mappings.
func TestDuplicateKeys(t *testing.T) {
	for _, size := range []int{1, 15, 16, 17, 100} {
		var text strings.Builder
		for i := range size {
			fmt.Fprintf(&text, "k%d: 1\n", i)
		}
		fmt.Fprintf(&text, "~: 1\n~: 2\nk%d: 2\n", size-1)
		v := parsed(t, text.String())
		seen := 0
		v.Each(func(_, _ Value) { seen++ })
		require.Equal(t, size, seen)
		require.Len(t, v.Mistakes, 3, "keys without a name are no duplicates")
		require.Equal(t, fmt.Sprintf("f:%d:1: k%d: given twice, first in line %d: take one out", size+3, size-1, size), v.Mistakes[2].Error())
	}
}

// A node that occurs in several places is decoded once, unless it is invalid. Its value is shared.
func TestDecoderSharedNode(t *testing.T) {
	type item struct {
		Words []string `yaml:"words"`
		Least *int     `yaml:"least" min:"1" max:"9"`
	}
	decode := func(text string) (items []item, parsedTexts int, mistakes []*Error) {
		v := parsed(t, "[{}, {}, {words: [own]}]")
		shared := parsed(t, text)
		v.Paths = make(map[*yaml.Node]string)
		for i := 0; i < len(shared.Node.Content); i += 2 {
			v.Paths[shared.Node.Content[i+1]] = "defaults." + shared.Node.Content[i].Value
			for _, n := range v.Node.Content[:2] {
				n.Content = append(n.Content, shared.Node.Content[i], shared.Node.Content[i+1])
			}
		}
		d := &Decoder{Expand: func(text string) (string, error) {
			parsedTexts++
			return text, nil
		}}
		d.Decode(v, &items)
		return items, parsedTexts, v.Mistakes
	}
	items, count, mistakes := decode("{words: [a, b], least: 3}")
	require.Empty(t, mistakes)
	require.Equal(t, 4, count)
	require.Equal(t, items[0], items[1])
	require.Same(t, items[0].Least, items[1].Least)
	require.Equal(t, []item{{Words: []string{"a", "b"}, Least: new(3)}, {Words: []string{"own"}}}, items[1:])
	_, count, mistakes = decode("{least: 10}")
	require.Equal(t, 3, count)
	require.Len(t, mistakes, 2)
	require.Equal(t, `defaults.least "10": want a whole number from 1 to 9`, mistakes[1].Mistake())
}

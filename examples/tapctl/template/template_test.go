package template_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/tapctl/template"
)

// seen is the object that these tests print.
type seen struct {
	Source  peer              `json:"source"`
	Meta    map[string]string `json:"meta,omitempty"`
	Request *request          `json:"request,omitempty"`
	End     *end              `json:"end,omitempty"`
	Never   string            `json:"-"`
}

type peer struct {
	IP   string `json:"ip"`
	Port uint16 `json:"port"`
}

type request struct {
	Path    string   `json:"path"`
	Headers []header `json:"headers,omitempty"`
	Raw     []byte   `json:"raw,omitempty"`
}

type header struct {
	Name string  `json:"name"`
	Str  *string `json:"valueStr,omitempty"`
}

type end struct {
	Bytes uint64  `json:"bytes"`
	Share float64 `json:"share"`
	Ended bool    `json:"ended"`
	More  any     `json:"more,omitempty"`
}

func requested() seen {
	return seen{
		Source:  peer{"10.0.0.1", 4190},
		Meta:    map[string]string{"pod": "web-0", "kubernetes.io/zone": "a"},
		Request: &request{Path: "/a<b>\x1b[2J\n", Headers: []header{{"host", new("web")}, {"x-id", new("7")}, {"bin", nil}}, Raw: []byte("hi")},
	}
}

func ended() seen {
	return seen{Source: peer{"10.0.0.2", 80}, End: &end{Bytes: 1 << 40, Share: 0.25, More: []any{"x", nil, map[string]any{"y": 1}}}}
}

// hostile has control characters and characters that change the direction of text, in each
// text.
func hostile() seen {
	const moves = "/\x1b[2J\u009b2J\u0085\x7f\u202e\u2066\U000e0041\u00a0\xff"
	return seen{
		Source: peer{moves, 1}, Meta: map[string]string{moves: moves},
		Request: &request{Path: moves, Headers: []header{{moves, new(moves)}}},
		End:     &end{More: []any{moves, map[string]any{moves: []any{moves}}}},
	}
}

func execute(t *testing.T, text string, of ...seen) string {
	t.Helper()
	tpl, err := template.Parse(text, seen{})
	require.NoError(t, err, text)
	var out strings.Builder
	for _, one := range of {
		require.NoError(t, tpl.Execute(&out, one), text)
	}
	return out.String()
}

func TestTemplate(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"{.source.ip}", "10.0.0.1\n10.0.0.2\n"},
		{"{.source.ip}:{.source.port}", "10.0.0.1:4190\n10.0.0.2:80\n"},
		{`{.source.ip}{"\n"}`, "10.0.0.1\n10.0.0.2\n"},
		{`{.source.ip}{'\t'}{.source.port}`, "10.0.0.1\t4190\n10.0.0.2\t80\n"},
		{`{"\x1b[1m"}{.source.port}`, "\x1b[1m4190\n\x1b[1m80\n"}, // the user's own
		{"{.source['ip','port']}", "10.0.0.1 4190\n10.0.0.2 80\n"},
		{"{$.source.port} {@.source.port}", "4190 4190\n80 80\n"},

		// Braces and a dot may be left out of one field.
		{".source.ip", "10.0.0.1\n10.0.0.2\n"},
		{"source.ip", "10.0.0.1\n10.0.0.2\n"},
		{"{source.ip}", "10.0.0.1\n10.0.0.2\n"},
		{"request.headers[0].name", "host\n"},

		// An object without the field prints nothing.
		{"path={.request.path}", `path=/a<b>\x1b[2J\n` + "\n"},
		{`{.request.path}{"\n"}`, `/a<b>\x1b[2J\n` + "\n"},
		{"{.request.path} {.end.bytes}", `/a<b>\x1b[2J\n ` + "\n 1099511627776\n"},
		{"{.request.headers[*].name}", "host x-id bin\n"},
		{"{.request.headers[-1].name} {.request.headers[:2].name}", "bin host x-id\n"},
		{`{.request.headers[?(@.name=="x-id")].valueStr}`, "7\n"},
		{`{.request.headers[?(@.valueStr)].name}`, "host x-id\n"},
		{`{range .request.headers[*]}{.name}={.valueStr}{"\n"}{end}`, "host=web\nx-id=7\nbin=\n"},
		{`{range .request.headers[*]}[{range @.valueStr}{@}{end}]{end}{.source.ip}`, "[web][7][]10.0.0.1\n10.0.0.2\n"},
		{`{.meta.pod}`, "web-0\n"},
		{`{.meta.kubernetes\.io/zone}`, "a\n"},
		{`{.meta.nothing}`, ""},
		{"{.request.raw}", "aGk=\n"},
		{"{.end.share} {.end.ended}", "0.25 false\n"},
		{"{.end.more[0]} {.end.more[2].y} {.end.more.anything}", "x 1 \n"},
		{"{.end.more[1]}", "null\n"},
		{"{..valueStr}", "web 7\n"},
		{"{.*.port}", "4190\n80\n"},

		// Objects and lists are printed as JSON.
		{"{.source}", `{"ip":"10.0.0.1","port":4190}` + "\n" + `{"ip":"10.0.0.2","port":80}` + "\n"},
		{"{.request.headers[1:]}", `{"name":"x-id","valueStr":"7"} {"name":"bin"}` + "\n"},
		{"{.request.headers}", `[{"name":"host","valueStr":"web"},{"name":"x-id","valueStr":"7"},{"name":"bin"}]` + "\n"},
	} {
		require.Equal(t, tt.want, execute(t, tt.text, requested(), ended()), tt.text)
	}
	for _, whole := range []string{"{}", "{@}", "{$}"} {
		require.Contains(t, execute(t, whole, requested()), `"path":"/a\u003cb\u003e\u001b[2J\n"`, whole)
	}
}

// Unprintable characters in JSON are escaped, in lists and in names.
func TestTemplateEscapes(t *testing.T) {
	const moves = `/\u001b[2J\u009b2J\u0085\u007f\u202e\u2066\udb40\udc41\u00a0` + "\ufffd"
	for text, want := range map[string]string{
		"{.source}":             `{"ip":"` + moves + `","port":1}`,
		"{.meta}":               `{"` + moves + `":"` + moves + `"}`,
		"{.request.headers[*]}": `{"name":"` + moves + `","valueStr":"` + moves + `"}`,
		"{.request.headers}":    `[{"name":"` + moves + `","valueStr":"` + moves + `"}]`,
		"{.end.more}":           `["` + moves + `",{"` + moves + `":["` + moves + `"]}]`,
		"{.request.path}":       `/\x1b[2J\u009b2J\u0085\x7f\u202e\u2066\U000e0041\u00a0` + "\ufffd",
	} {
		require.Equal(t, want+"\n", execute(t, text, hostile()), text)
	}
	for _, text := range []string{"{}", "{.*}", "{..}", "{.*.*}", "{..more}"} {
		printed := execute(t, text, hostile())
		require.NotEmpty(t, printed)
		requirePrintable(t, printed, "")
	}
	var again seen
	require.NoError(t, json.Unmarshal([]byte(execute(t, "{}", hostile())), &again))
	require.Equal(t, strings.ToValidUTF8(hostile().Request.Path, "\ufffd"), again.Request.Path, "it says the same")
}

// requirePrintable fails the test if lines have unprintable characters that own does not have.
func requirePrintable(t *testing.T, lines, own string) {
	t.Helper()
	for _, r := range lines {
		require.True(t, r == '\n' || unicode.IsPrint(r) || strings.ContainsRune(own, r), "%q in %q", r, lines)
	}
}

// A range does not use up the template.
func TestTemplateReuse(t *testing.T) {
	want := strings.Repeat("host,x-id,bin,/\n", 3)
	require.Equal(t, want, execute(t, `{range .request.headers[*]}{.name},{end}/`, requested(), ended(), requested(), requested()))
}

// Invalid templates are rejected with the position of the error.
func TestParseErrors(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"{.source.ip", "at character 1, in {.source.ip: unclosed action"},
		{"é {.source.ip} {.source.ip!}", "at character 16, in {.source.ip!}: unknown field ip!; the fields are ip, port"},
		{"{.source.ip} {!}", "at character 14, in {!}: unrecognized character in action: U+0021 '!'"},
		{`{.source.ip} {"\n}`, `at character 14, in {"\n}: unterminated quoted string`},
		{"{.source.ip} {.request.headers[x]}", "at character 14, in {.request.headers[x]}: invalid array index x"},
		{`{.source.ip} {.request.headers[?(@.name=="}")].name}{.nope}`, "at character 53, in {.nope}: unknown field nope; the fields are end, meta, request, source"},
		{"{.request.header}", "in {.request.header}: unknown field header; the fields are headers, path, raw"},
		{"request.header", "in {.request.header}: unknown field header"},
		{"{.}", "missing name after the dot; the whole object is {@}"},
		{"{.Never}", "unknown field Never"},
		{"{.source.ip.x}", "unknown field x: a value has no fields"},
		{"{.meta.pod.x}", "unknown field x: a value has no fields"},
		{"{.request.raw[0]}", "[…] needs a list"},
		{"{.source[0]}", "[…] needs a list"},
		{"{.source.ip.*}", "a value has no fields"},
		{"{.request.headers.name}", "name is of the elements of a list: [*].name"},
		{"{.source['ip','nope']}", "unknown field nope"},
		{`{.request.headers[?(@.nope=="x")]}`, "unknown field nope; the fields are name, valueStr"},
		{`{.request.headers[?(@.name=="x")].nope}`, "unknown field nope"},
		{`{.request.headers[?(@.name=!"x")].name}`, "=! is not an operator"},
		{`{.request.headers[?(name=="x")].name}`, "name is not known: a field is @.name"},
		{`{.source[?(@.ip=="x")]}`, "[?(…)] needs a list"},
		{"{.source.ip} {ip}", `at character 14, in {ip}: ip is not known: a field is {.ip}, text is {"ip"}`},
		{"{.source.ip} {end}", "at character 14, in {end}: no range to end"},
		{"{.source.ip}{range .request.headers[*]}{.name}", "at character 13, in {range .request.headers[*]}: missing {end}"},
		{"{range .request.headers[*]}{.path}{end}", "at character 28, in {.path}: unknown field path; the fields are name, valueStr"},
		{"{range .request.headers[*]}{.name}{end}{.name}", "at character 40, in {.name}: unknown field name"},
		{`{"text"} {1} {true}`, "it asks for nothing"},
		{"", "it asks for nothing"},
		{"{....source}", "in {....source}: "},
	} {
		_, err := template.Parse(tt.text, seen{})
		require.ErrorContains(t, err, tt.want, tt.text)
	}
}

// A value that one object lacks is an error of that object. Nothing of it is printed.
func TestExecuteErrors(t *testing.T) {
	tpl, err := template.Parse("{.source.ip} {.request.headers[2].name}", seen{})
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, tpl.Execute(&out, requested()))
	one := requested()
	one.Request.Headers = one.Request.Headers[:1]
	err = tpl.Execute(&out, one)
	require.ErrorContains(t, err, "array index out of bounds: index 2, length 1")
	require.ErrorAs(t, err, new(*template.Error))
	require.NoError(t, tpl.Execute(&out, requested()))
	require.Equal(t, "10.0.0.1 bin\n10.0.0.1 bin\n", out.String())

	full := errors.New("the disk is full")
	err = tpl.Execute(failing{full}, requested())
	require.ErrorIs(t, err, full)
	require.NotErrorAs(t, err, new(*template.Error))
	require.Error(t, tpl.Execute(&out, func() {}))
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// Numbers are compared as numbers, and strings as strings.
func TestComparisons(t *testing.T) {
	type item struct {
		N int    `json:"n"`
		S string `json:"s"`
	}
	type list struct {
		All []item `json:"all"`
	}
	of := list{[]item{{1, "a\x1b"}, {2, "b"}, {3000000, "c"}}}
	for text, want := range map[string]string{
		"{.all[?(@.n>1)].n}":               "2 3000000\n",
		"{.all[?(@.n==3000000)].s}":        "c\n",
		`{.all[?(@.s=="b")].n}`:            "2\n",
		`{.all[?(@.s!="b")].s}`:            `a\x1b c` + "\n",
		"{.all[?(@.s==\"a\x1b\")].n}":      "1\n",
		`{range .all[?(@.n<3)]}{.n};{end}`: "1;2;\n",
	} {
		tpl, err := template.Parse(text, list{})
		require.NoError(t, err, text)
		var out strings.Builder
		require.NoError(t, tpl.Execute(&out, of), text)
		require.Equal(t, want, out.String(), text)
	}
	tpl, err := template.Parse(`{.all[?(@.n=="x")].n}`, list{})
	require.NoError(t, err)
	require.ErrorContains(t, tpl.Execute(&strings.Builder{}, of), "incompatible types")
}

// Any template is either rejected or prints lines. Texts of objects are printable.
func FuzzTemplate(f *testing.F) {
	for _, text := range []string{
		"{.source.ip}", "source.ip", `{range .request.headers[*]}{.name}{"\n"}{end}`, `{..valueStr}`,
		`{.request.headers[?(@.name=="x")].name}`, "{.request.headers[0:2:1]}", "{.source['ip','port']}",
		"{range .request.headers[*]}{[0]}{end}", "{[]}", "{[?()]}", `{"\`, "{'}", "{.a[", "{}", "{.*}", "{..}", "{.end.more}", "{.meta}", "{range .end.more[*]}{@[0]}{end}", "{.\\}}",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 200 || strings.Count(text, "..")+strings.Count(text, "*")+strings.Count(text, ":") > 3 {
			t.Skip("asks for very much")
		}
		tpl, err := template.Parse(text, seen{})
		if err != nil {
			return
		}
		for _, one := range []seen{requested(), ended(), {}, hostile()} {
			var out strings.Builder
			if err := tpl.Execute(&out, one); err != nil {
				require.Empty(t, out.String())
				continue
			}
			if printed := out.String(); printed != "" {
				require.True(t, strings.HasSuffix(printed, "\n"))
			}
			if !strings.Contains(text, `\`) { // which may stand for anything
				requirePrintable(t, out.String(), text)
			}
		}
	})
}

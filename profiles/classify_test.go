package profiles

import (
	"iter"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

type fieldMap map[string]string

func (f fieldMap) Get(name string) string         { return f[strings.ToLower(name)] }
func (f fieldMap) All() iter.Seq2[string, string] { return maps.All(f) }

func (f fieldMap) Values(name string) (values []string) {
	for field, value := range f {
		if strings.EqualFold(field, name) {
			values = append(values, value)
		}
	}
	return values
}

var _ layer.Header = fieldMap{}

// none has no fields. An Accessor never returns a nil Header.
var none fieldMap

func grpcStatus(code string) fieldMap { return fieldMap{"grpc-status": code} }

// TestClassify has the rules of classification as tables.
func TestClassify(t *testing.T) {
	notFound := ResponseClass{Status{404, 404}, true}
	for _, tt := range []struct {
		what            string
		classes         []ResponseClass
		grpc            bool
		status          int
		header, trailer fieldMap
		want            layer.Class
	}{
		{"no classes: 200", nil, false, 200, nil, nil, layer.Success},
		{"no classes: 404", nil, false, 404, nil, nil, layer.Success},
		{"no classes: 499", nil, false, 499, nil, nil, layer.Success},
		{"no classes: 500", nil, false, 500, nil, nil, layer.Failure},
		{"no classes: 599", nil, false, 599, nil, nil, layer.Failure},
		{"no classes: 600", nil, false, 600, nil, nil, layer.Success},
		{"no classes: HTTP does not look at grpc-status", nil, false, 200, grpcStatus("2"), grpcStatus("2"), layer.Success},

		{"gRPC: in the header", nil, true, 200, grpcStatus("2"), nil, layer.Failure},
		{"gRPC: in the trailers", nil, true, 200, nil, grpcStatus("2"), layer.Failure},
		{"gRPC: the header wins", nil, true, 200, grpcStatus("0"), grpcStatus("2"), layer.Success},
		{"gRPC: absent at the end", nil, true, 200, nil, nil, layer.Success},
		{"gRPC: absent at the end, with any HTTP status", nil, true, 503, nil, nil, layer.Success},
		{"gRPC: a status that is not a number", nil, true, 200, grpcStatus("two"), grpcStatus("-2"), layer.Success},
		{"gRPC: the HTTP status has no effect", nil, true, 500, nil, grpcStatus("0"), layer.Success},

		{"class: match", []ResponseClass{notFound}, false, 404, nil, nil, layer.Failure},
		{"class: a match is before gRPC", []ResponseClass{{Status{200, 299}, false}}, true, 200, grpcStatus("2"), grpcStatus("2"), layer.Success},
		{"class: first match wins", []ResponseClass{{Status{500, 504}, false}, {Status{500, 599}, true}}, false, 503, nil, nil, layer.Success},
		{"class: second match", []ResponseClass{{Status{500, 504}, false}, {Status{500, 599}, true}}, false, 505, nil, nil, layer.Failure},
		{"class: both ends are in it", []ResponseClass{{Status{400, 404}, true}}, false, 404, nil, nil, layer.Failure},
		{"class: lower end", []ResponseClass{{Status{400, 404}, true}}, false, 400, nil, nil, layer.Failure},
		{"class: beyond its end", []ResponseClass{{Status{400, 404}, true}}, false, 405, nil, nil, layer.Success},
		{"class: a range that is empty", []ResponseClass{{Status{404, 400}, true}}, false, 404, nil, nil, layer.Success},

		{"none matched: 5xx", []ResponseClass{notFound}, false, 500, nil, nil, layer.Failure},
		{"none matched: 200", []ResponseClass{notFound}, false, 200, nil, nil, layer.Success},
		{"none matched: gRPC status in the header, even for HTTP", []ResponseClass{notFound}, false, 200, grpcStatus("13"), nil, layer.Failure},
		{"none matched: gRPC status in the trailers", []ResponseClass{notFound}, true, 200, nil, grpcStatus("13"), layer.Failure},
		{"none matched: gRPC status before 5xx", []ResponseClass{notFound}, true, 500, nil, grpcStatus("0"), layer.Success},
		{"none matched: no gRPC status, 5xx", []ResponseClass{notFound}, true, 502, nil, nil, layer.Failure},

		{"all", []ResponseClass{{All{Status{400, 499}, Not{Status{404, 404}}}, true}}, false, 400, nil, nil, layer.Failure},
		{"all, one does not hold", []ResponseClass{{All{Status{400, 499}, Not{Status{404, 404}}}, true}}, false, 404, nil, nil, layer.Success},
		{"any", []ResponseClass{{Any{Status{404, 404}, Status{410, 410}}, true}}, false, 410, nil, nil, layer.Failure},
		{"any, none holds", []ResponseClass{{Any{Status{404, 404}, Status{410, 410}}, true}}, false, 409, nil, nil, layer.Success},
	} {
		t.Run(tt.what, func(t *testing.T) {
			var problems FieldErrors
			c := compileClasses(tt.classes, &problems)
			require.Empty(t, problems)
			assert.Equal(t, tt.want, c.head(tt.grpc, tt.status, tt.header).end(tt.trailer))
		})
	}
}

func TestClassifyGRPCCodes(t *testing.T) {
	failures := map[int]bool{2: true, 4: true, 7: true, 13: true, 14: true, 15: true}
	for code := range 100 {
		want := layer.Success
		if failures[code] {
			want = layer.Failure
		}
		status := grpcStatus(strconv.Itoa(code))
		assert.Equal(t, want, classifier(nil).head(true, 200, status).end(none), "%d in the header", code)
		assert.Equal(t, want, classifier(nil).head(true, 200, none).end(status), "%d in the trailers", code)
	}
}

// A class with a bad condition is dropped; the others, and the members that
// are good, stay.
func TestClassifyDropsInvalid(t *testing.T) {
	for _, tt := range []struct {
		what  string
		match Match
		err   string
	}{
		{"nothing", nil, "no condition"},
		{"empty all", All{}, "no valid member"},
		{"empty any", Any{}, "no valid member"},
		{"all invalid", All{Status{0, 200}, Any{}}, "no valid member"},
		{"any invalid", Any{nil, Not{}}, "no valid member"},
		{"not nothing", Not{}, "not: no condition"},
		{"not invalid", Not{All{}}, "not: no valid member"},
		{"open start", Status{0, 599}, "status 0 to 599 is not within 100 to 999"},
		{"open end", Status{500, 0}, "status 500 to 0 is not within 100 to 999"},
		{"below", Status{99, 200}, "not within"},
		{"above", Status{200, 1000}, "not within"},
		{"path", Path("/"), "profiles.Path is not a condition on a response"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			require.ErrorContains(t, ResponseClass{Match: tt.match}.Validate(), tt.err)
			var dropped FieldErrors
			c := compileClasses([]ResponseClass{
				{Match: tt.match, Failure: true},
				{Match: Any{tt.match, Status{418, 418}}, Failure: true},
			}, &dropped)
			require.Len(t, c, 1, "the second class has a valid member")
			assert.Equal(t, layer.Failure, c.head(false, 418, none).end(none))
			assert.NotEmpty(t, dropped)
		})
	}
	// Without a valid class the defaults of a route without classes hold.
	c := compileClasses([]ResponseClass{{All{}, true}}, new(FieldErrors))
	assert.Equal(t, layer.Success, c.head(false, 200, grpcStatus("2")).end(none))
	assert.NoError(t, ResponseClass{Match: Status{100, 999}}.Validate())
}

// naiveStatus is compileResponse by its definition.
func naiveStatus(m Match, status int) (holds, valid bool) {
	switch m := m.(type) {
	case All, Any:
		list, all := m.(All)
		members := []Match(list)
		if !all {
			members = m.(Any)
		}
		holds = all
		for _, member := range members {
			if h, ok := naiveStatus(member, status); ok {
				valid = true
				if all {
					holds = holds && h
				} else {
					holds = holds || h
				}
			}
		}
		return holds, valid
	case Not:
		h, ok := naiveStatus(m.Match, status)
		return !h, ok
	case Status:
		valid = m.Min >= 100 && m.Min <= 999 && m.Max >= 100 && m.Max <= 999
		return status >= m.Min && status <= m.Max, valid
	}
	return false, false
}

func TestClassifyModel(t *testing.T) {
	statuses := []int{0, 99, 100, 200, 299, 404, 500, 999, 1000}
	bound := rapid.SampledFrom(statuses)
	var draw func(t *rapid.T, depth int) Match
	draw = func(t *rapid.T, depth int) Match {
		kind := rapid.IntRange(0, 5).Draw(t, "kind")
		if depth == 0 || kind > 2 {
			if kind == 5 {
				return nil
			}
			return Status{bound.Draw(t, "min"), bound.Draw(t, "max")}
		}
		if kind == 0 {
			return Not{draw(t, depth-1)}
		}
		members := make([]Match, rapid.IntRange(0, 3).Draw(t, "members"))
		for i := range members {
			members[i] = draw(t, depth-1)
		}
		if kind == 1 {
			return All(members)
		}
		return Any(members)
	}
	rapid.Check(t, func(t *rapid.T) {
		m := draw(t, 4)
		f, err := compileResponse(m, func(error) {})
		for _, status := range statuses {
			holds, valid := naiveStatus(m, status)
			require.Equal(t, valid, err == nil, "%#v", m)
			if valid {
				require.Equal(t, truthOf(holds), f.holds(response{status: status}), "%#v of %d", m, status)
			}
		}
	})
}

package profiles

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// A class that only the trailers decide is open until they come.
func TestClassifyByTrailers(t *testing.T) {
	const success, failure = layer.Success, layer.Failure
	code := func(from, to uint32) Match { return GRPCStatus{from, to} }
	sum := func(v StringMatch) Match { return Trailer{"x-sum", v} }
	sent := fieldMap{"X-Sum": "42"}
	for _, tt := range []struct {
		what            string
		classes         []ResponseClass
		grpc            bool
		status          int
		header, trailer fieldMap
		head            layer.Class
		awaits          bool
		end             layer.Class
	}{
		{"gRPC status in the trailers", []ResponseClass{{code(5, 5), true}}, true, 200, nil, grpcStatus("5"), success, true, failure},
		{"gRPC status in the header", []ResponseClass{{code(5, 5), true}}, true, 200, grpcStatus("5"), nil, failure, false, failure},
		{"of a request that is not gRPC", []ResponseClass{{code(5, 5), true}}, false, 200, nil, grpcStatus("5"), success, true, failure},
		{"both ends are in it", []ResponseClass{{code(5, 6), true}}, true, 200, nil, grpcStatus("6"), success, true, failure},
		{"another gRPC status goes by the defaults", []ResponseClass{{code(5, 6), true}}, true, 200, nil, grpcStatus("7"), success, true, failure},
		{"a failure made a success", []ResponseClass{{code(7, 7), false}}, true, 200, nil, grpcStatus("7"), success, true, success},
		{"no gRPC status at all", []ResponseClass{{code(0, 16), true}}, true, 200, nil, nil, success, true, success},
		{"no gRPC status, but a 5xx", []ResponseClass{{code(0, 16), false}}, true, 503, nil, nil, failure, true, failure},
		{"a status that is not a number", []ResponseClass{{code(0, 16), true}}, true, 200, grpcStatus("x"), grpcStatus("x"), success, true, success},

		{"a trailer", []ResponseClass{{sum(Exact("42")), true}}, false, 200, nil, sent, success, true, failure},
		{"a trailer with another value", []ResponseClass{{sum(Exact("43")), true}}, false, 200, nil, sent, success, true, success},
		{"a trailer that is there", []ResponseClass{{sum(AnyValue{}), true}}, false, 200, nil, sent, success, true, failure},
		{"a trailer that is not", []ResponseClass{{sum(AnyValue{}), true}}, false, 200, nil, nil, success, true, success},
		{"a header field is not a trailer", []ResponseClass{{sum(AnyValue{}), true}}, false, 200, sent, nil, success, true, success},
		{"a response of nothing but trailers", []ResponseClass{{sum(AnyValue{}), true}}, true, 200, fieldMap{"grpc-status": "0", "X-Sum": "42"}, nil, failure, false, failure},

		{"the first class decides at once", []ResponseClass{{Status{503, 503}, true}, {code(0, 16), false}}, true, 503, nil, grpcStatus("0"), failure, false, failure},
		{"one that is open comes first in the end", []ResponseClass{{code(0, 0), false}, {Status{200, 200}, true}}, true, 200, nil, grpcStatus("0"), failure, true, success},
		{"or the one after it", []ResponseClass{{code(0, 0), false}, {Status{200, 200}, true}}, true, 200, nil, grpcStatus("1"), failure, true, failure},
		{"of two that are open the first", []ResponseClass{{sum(AnyValue{}), false}, {code(2, 2), true}}, true, 200, nil, fieldMap{"X-Sum": "", "grpc-status": "2"}, success, true, success},
		{"and else the second", []ResponseClass{{sum(AnyValue{}), false}, {code(8, 8), true}}, true, 200, nil, grpcStatus("8"), success, true, failure},

		{"all, one of them decided against", []ResponseClass{{All{Status{500, 599}, code(0, 16)}, true}}, true, 200, nil, grpcStatus("0"), success, true, success},
		{"all, one of them open", []ResponseClass{{All{Status{200, 200}, code(5, 5)}, true}}, true, 200, nil, grpcStatus("5"), success, true, failure},
		{"any, one of them decided for", []ResponseClass{{Any{code(5, 5), Status{200, 200}}, true}}, true, 200, nil, nil, failure, false, failure},
		{"any, one of them open", []ResponseClass{{Any{code(5, 5), Status{500, 500}}, true}}, true, 200, nil, grpcStatus("5"), success, true, failure},
		{"not, open", []ResponseClass{{Not{code(0, 0)}, true}}, true, 200, nil, grpcStatus("3"), success, true, failure},
		{"not, of a status that is not there", []ResponseClass{{Not{code(0, 0)}, true}}, true, 200, nil, nil, success, true, failure},
		{"not, decided", []ResponseClass{{Not{code(0, 0)}, true}}, true, 200, grpcStatus("0"), nil, success, false, success},
	} {
		t.Run(tt.what, func(t *testing.T) {
			var problems FieldErrors
			v := compileClasses(tt.classes, &problems).head(tt.grpc, tt.status, tt.header)
			require.Empty(t, problems)
			assert.Equal(t, tt.head, v.class, "by the head")
			assert.Equal(t, tt.awaits, (v.open || v.undecided != nil))
			assert.Equal(t, tt.end, v.end(tt.trailer))
		})
	}
}

func TestClassesOfTrailersValidate(t *testing.T) {
	for _, tt := range []struct {
		match Match
		err   string
	}{
		{GRPCStatus{0, 16}, ""},
		{GRPCStatus{5, 4}, "gRPC status 5 to 4 is not a range within 0 to 16"},
		{GRPCStatus{500, 599}, "gRPC status 500 to 599 is not a range within 0 to 16"},
		{Trailer{"x-sum", Regex("a|b")}, ""},
		{Trailer{"", AnyValue{}}, `trailer "": the name is not a token`},
		{Trailer{"x sum", AnyValue{}}, "the name is not a token"},
		{Trailer{"x-sum", nil}, `trailer "x-sum": no value`},
		{Trailer{"x-sum", Regex("(")}, `trailer "x-sum": regex "("`},
	} {
		err := ResponseClass{Match: tt.match}.Validate()
		if tt.err == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, tt.err)
	}
	for _, m := range []Match{GRPCStatus{}, Trailer{"x", AnyValue{}}} {
		require.ErrorContains(t, ValidateMatch(m), "is not a condition on a request")
	}
}

// The end of a response does not undo a decision of its headers. The result is the same
// as if headers and trailers were known at once.
func TestClassesFirstDecides(t *testing.T) {
	leaf := rapid.SampledFrom([]Match{
		Status{200, 200}, Status{500, 599}, GRPCStatus{0, 0}, GRPCStatus{1, 16}, Trailer{"x-sum", Exact("42")}, Trailer{"x-sum", AnyValue{}},
	})
	class := rapid.Custom(func(t *rapid.T) ResponseClass {
		members := rapid.SliceOfN(leaf, 1, 3).Draw(t, "members")
		m := rapid.SampledFrom([]Match{All(members), Any(members), Not{members[0]}, members[0]}).Draw(t, "match")
		return ResponseClass{m, rapid.Bool().Draw(t, "failure")}
	})
	rapid.Check(t, func(t *rapid.T) {
		var problems FieldErrors
		classes := compileClasses(rapid.SliceOfN(class, 0, 4).Draw(t, "classes"), &problems)
		require.Empty(t, problems)
		status := rapid.SampledFrom([]int{200, 404, 503}).Draw(t, "status")
		grpc := rapid.Bool().Draw(t, "grpc")
		trailer := rapid.SampledFrom([]fieldMap{nil, grpcStatus("0"), grpcStatus("2"), {"X-Sum": "42"}, {"X-Sum": "1", "grpc-status": "7"}}).Draw(t, "trailer")
		v := classes.head(grpc, status, none)
		if !v.open && v.undecided == nil && v.end(trailer) != v.class {
			t.Fatalf("decided for %v, then %v", v.class, v.end(trailer))
		}
		if _, ok := trailer["grpc-status"]; !ok {
			return
		}
		// A trailers-only response has the status in its header.
		only := classes.head(grpc, status, trailer)
		if only.open || only.undecided != nil || len(classes) > 0 && only.class != v.end(trailer) {
			t.Fatalf("%v in the header, %v in the trailers", only.class, v.end(trailer))
		}
	})
}

// Package spanstest provides an OTLP receiver for tests.
package spanstest

import (
	"context"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// descriptors is a FileDescriptorSet with trace_service.proto and its imports, as written by
// go.opentelemetry.io/proto/otlp/collector/trace/v1 v1.9.0. Requiring that module would add it to
// this module's go.mod.
//
//go:embed otlp.binpb
var descriptors []byte

// Span is a span as OTLP describes it.
type Span struct {
	Trace, ID, Parent string // hexadecimal; Parent may be ""
	State, Name, Kind string
	Start, End        int64          // Unix time in nanoseconds
	Attributes        map[string]any // string or int64
	Resource          map[string]any // describes the program
	Scope             string
	Failure           string // message with the status ERROR; "" if no status is set
}

// Receiver receives OTLP over HTTP with ServeHTTP, and over gRPC in a server that was passed to
// Register. It decodes messages with OTLP's own descriptors and rejects unknown fields, so it
// finds mistakes in a hand-written encoder. It is safe for concurrent use.
type Receiver struct {
	request, response protoreflect.MessageDescriptor

	mu    sync.Mutex
	spans []Span
}

// NewReceiver returns a Receiver without spans.
func NewReceiver() (*Receiver, error) {
	set := new(descriptorpb.FileDescriptorSet)
	if err := proto.Unmarshal(descriptors, set); err != nil {
		return nil, err
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return nil, err
	}
	request, err := message(files, "ExportTraceServiceRequest")
	if err != nil {
		return nil, err
	}
	response, err := message(files, "ExportTraceServiceResponse")
	// If err is not nil, the caller ignores the Receiver.
	return &Receiver{request: request, response: response}, err
}

// pkg is the package of the messages in descriptors, with a dot at the end.
const pkg = "opentelemetry.proto.collector.trace.v1."

// message returns the descriptor of the message name in pkg.
func message(files *protoregistry.Files, name protoreflect.FullName) (protoreflect.MessageDescriptor, error) {
	d, err := files.FindDescriptorByName(pkg + name)
	if err != nil {
		return nil, err
	}
	m, ok := d.(protoreflect.MessageDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is a %T", name, d)
	}
	return m, nil
}

// Spans returns the received spans in the trace with this hexadecimal ID, or all spans if it is
// "".
func (r *Receiver) Spans(trace string) []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	var spans []Span
	for _, s := range r.spans {
		if trace == "" || s.Trace == trace {
			spans = append(spans, s)
		}
	}
	return spans
}

// ServeHTTP receives OTLP over HTTP, as protobuf at /v1/traces.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	m := dynamicpb.NewMessage(r.request)
	// Errors are collected, because a test needs to see all of them.
	err = errors.Join(err, proto.Unmarshal(body, m))
	if req.Header.Get("Content-Type") != "application/x-protobuf" || req.URL.Path != "/v1/traces" || req.Method != http.MethodPost {
		err = errors.Join(err, fmt.Errorf("%s %s with %s", req.Method, req.URL.Path, req.Header.Get("Content-Type")))
	}
	if err = errors.Join(err, r.add(m)); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// Register makes s receive OTLP over gRPC.
func (r *Receiver) Register(s *grpc.Server) {
	// There is no generated code, so the service is described by hand.
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: pkg + "TraceService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Export",
			Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				return r.export(decode)
			},
		}},
	}, r)
}

// export handles a call of the method Export. decode reads its message.
func (r *Receiver) export(decode func(any) error) (any, error) {
	m := dynamicpb.NewMessage(r.request)
	if err := decode(m); err != nil {
		return nil, err
	}
	if err := r.add(m); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return dynamicpb.NewMessage(r.response), nil
}

// attributes are a message's attributes as JSON.
type attributes []struct {
	Key   string `json:"key"`
	Value struct {
		StringValue *string `json:"stringValue"`
		IntValue    int64   `json:"intValue,string"`
	} `json:"value"`
}

// byKey returns the values by key: a string or an int64.
func (a attributes) byKey() map[string]any {
	values := map[string]any{}
	for _, e := range a {
		// A missing stringValue means that the value is an integer.
		if values[e.Key] = e.Value.IntValue; e.Value.StringValue != nil {
			values[e.Key] = *e.Value.StringValue
		}
	}
	return values
}

// add adds the spans of m.
func (r *Receiver) add(m *dynamicpb.Message) error {
	if err := rejectUnknown(m); err != nil {
		return err
	}
	// The detour over JSON is shorter than reading fields by reflection.
	text, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	var decoded struct {
		ResourceSpans []struct {
			Resource struct {
				Attributes attributes `json:"attributes"`
			} `json:"resource"`
			ScopeSpans []struct {
				Scope struct {
					Name string `json:"name"`
				} `json:"scope"`
				Spans []struct {
					TraceID      []byte     `json:"traceId"` // base64, unlike in OTLP's own JSON
					SpanID       []byte     `json:"spanId"`
					ParentSpanID []byte     `json:"parentSpanId"`
					TraceState   string     `json:"traceState"`
					Name         string     `json:"name"`
					Kind         string     `json:"kind"`
					Start        int64      `json:"startTimeUnixNano,string"`
					End          int64      `json:"endTimeUnixNano,string"`
					Attributes   attributes `json:"attributes"`
					Status       struct {
						Message string `json:"message"`
					} `json:"status"`
				} `json:"spans"`
			} `json:"scopeSpans"`
		} `json:"resourceSpans"`
	}
	if err := json.Unmarshal(text, &decoded); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range decoded.ResourceSpans {
		// Each span gets a copy, so that a test cannot change another one's.
		program := resource.Resource.Attributes.byKey()
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				r.spans = append(r.spans, Span{
					Trace: hex.EncodeToString(s.TraceID), ID: hex.EncodeToString(s.SpanID), Parent: hex.EncodeToString(s.ParentSpanID),
					State: s.TraceState, Name: s.Name, Kind: s.Kind, Start: s.Start, End: s.End,
					Attributes: s.Attributes.byKey(), Resource: maps.Clone(program), Scope: scope.Scope.Name, Failure: s.Status.Message,
				})
			}
		}
	}
	return nil
}

// rejectUnknown returns an error if m, or a message in it, contains a field that OTLP does not
// define.
func rejectUnknown(m protoreflect.Message) (err error) {
	if len(m.GetUnknown()) > 0 {
		return fmt.Errorf("%s has unknown fields", m.Descriptor().FullName())
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		// A field without messages has no unknown fields of its own.
		case field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				err = errors.Join(err, rejectUnknown(value.List().Get(i).Message()))
			}
		default:
			err = rejectUnknown(value.Message())
		}
		// true continues with the next field.
		return err == nil
	})
	return err
}

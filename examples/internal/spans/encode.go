package spans

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// encode returns batch as OTLP's ExportTraceServiceRequest. The numbers are field numbers in
// opentelemetry/proto/trace/v1/trace.proto and in the common.proto and resource.proto that it
// imports.
func (c *Config) encode(batch []*Span) []byte {
	// The message nests spans in a scope, and the scope in a resource.
	scopeSpans := appendMessage(nil, 1, appendText(nil, 1, c.Scope))
	for _, s := range batch {
		scopeSpans = appendMessage(scopeSpans, 2, s.encode())
	}
	resourceSpans := appendMessage(nil, 1, appendAttributes(nil, 1, c.Resource))
	resourceSpans = appendMessage(resourceSpans, 2, scopeSpans)
	return appendMessage(nil, 1, resourceSpans)
}

// encode returns s as OTLP's Span.
func (s *Span) encode() []byte {
	b := appendMessage(nil, 1, s.Trace[:])
	b = appendMessage(b, 2, s.ID[:])
	b = appendText(b, 3, s.State)
	if s.Parent != [8]byte{} {
		b = appendMessage(b, 4, s.Parent[:])
	}
	b = appendText(b, 5, s.Name)
	b = protowire.AppendVarint(protowire.AppendTag(b, 6, protowire.VarintType), uint64(s.Kind))
	b = protowire.AppendFixed64(protowire.AppendTag(b, 7, protowire.Fixed64Type), uint64(s.Start.UnixNano()))
	b = protowire.AppendFixed64(protowire.AppendTag(b, 8, protowire.Fixed64Type), uint64(s.End.UnixNano()))
	b = appendAttributes(b, 9, s.Attributes)
	if s.Failure != "" {
		// STATUS_CODE_ERROR in OTLP's enum.
		const statusError = 2
		status := appendText(nil, 2, s.Failure)
		status = protowire.AppendVarint(protowire.AppendTag(status, 3, protowire.VarintType), statusError)
		b = appendMessage(b, 15, status)
	}
	return protowire.AppendFixed32(protowire.AppendTag(b, 16, protowire.Fixed32Type), uint32(s.Flags))
}

func appendAttributes(b []byte, field protowire.Number, attributes []Attribute) []byte {
	// The numbers are those in KeyValue and AnyValue.
	for _, a := range attributes {
		var value []byte
		if a.isNumber {
			value = protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), uint64(a.number))
		} else { // even if it is empty, because the field is in a oneof
			value = appendMessage(nil, 1, []byte(strings.ToValidUTF8(a.text, "\uFFFD")))
		}
		b = appendMessage(b, field, appendMessage(appendText(nil, 1, a.key), 2, value))
	}
	return b
}

// appendMessage appends a field with a message or bytes to b.
func appendMessage(b []byte, field protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), message)
}

// appendText appends a text field, unless text is empty. Invalid UTF-8 is replaced, because a
// receiver would reject the whole message.
func appendText(b []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return appendMessage(b, field, []byte(strings.ToValidUTF8(text, "\uFFFD")))
}

// HTTP returns a Sender for an OTLP receiver over HTTP.
func HTTP(url string) Sender {
	client := new(http.Client)
	return func(ctx context.Context, message []byte) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(message))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/x-protobuf")
		rsp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer rsp.Body.Close()
		// The body only serves for the error.
		text, err := io.ReadAll(io.LimitReader(rsp.Body, 1024))
		if err == nil && rsp.StatusCode/100 != 2 {
			err = fmt.Errorf("the receiver returned %s: %q", rsp.Status, text)
		}
		return err
	}
}

// GRPC returns a Sender for an OTLP receiver over gRPC.
func GRPC(conn grpc.ClientConnInterface) Sender {
	return func(ctx context.Context, message []byte) error {
		// The message is already encoded. Unknown fields are sent as they are, so an empty
		// message can carry it.
		var request, response emptypb.Empty
		request.ProtoReflect().SetUnknown(message)
		return conn.Invoke(ctx, "/opentelemetry.proto.collector.trace.v1.TraceService/Export", &request, &response)
	}
}

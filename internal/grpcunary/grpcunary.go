// Package grpcunary makes gRPC calls through the layers for HTTP, and so through their balanced endpoints,
// which a grpc.ClientConn cannot use.
package grpcunary

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
)

const (
	prefixLen = 5       // in front of a message: 0 for no compression, and the length in four bytes
	maxAnswer = 1 << 20 // bounds the memory for an answer
)

// Call sends message to a method, such as "/grpc.health.v1.Health/Check", of the given host, and returns the
// message of the answer. The server learns the deadline of ctx. A status other than OK is an error.
func Call(ctx context.Context, rt http.RoundTripper, host, method string, message []byte) ([]byte, error) {
	frame := slices.Concat(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message)
	req := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: host, Path: method}, Host: host, ProtoMajor: 2,
		Header: http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}, ContentLength: int64(len(frame)),
		// With GetBody, a call that a server has not processed can be sent again.
		Body:    io.NopCloser(bytes.NewReader(frame)),
		GetBody: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(frame)), nil },
	}
	if deadline, ok := ctx.Deadline(); ok {
		// The unit m is milliseconds, and a value has at most eight digits. It is rounded up, as in grpc-go, so that
		// the server does not give up before the caller.
		timeout := min(max(1, (time.Until(deadline)+time.Millisecond-1).Milliseconds()), 99_999_999)
		req.Header["Grpc-Timeout"] = []string{strconv.FormatInt(timeout, 10) + "m"}
	}
	rsp, err := rt.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	defer rsp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(rsp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	// A call that fails immediately has its status in the header instead of trailers.
	status := rsp.Trailer
	if status.Get("Grpc-Status") == "" {
		status = rsp.Header
	}
	if code := status.Get("Grpc-Status"); code != "0" {
		return nil, fmt.Errorf("HTTP status %d, grpc-status %q: %s", rsp.StatusCode, code, status.Get("Grpc-Message"))
	}
	if len(answer) < prefixLen || answer[0] != 0 || int64(binary.BigEndian.Uint32(answer[1:])) != int64(len(answer)-prefixLen) {
		return nil, errors.New("the answer is not one uncompressed message")
	}
	return answer[prefixLen:], nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
)

// echo implements the test service of gRPC's interoperability tests. Each response begins with
// the pod's name, followed by the request's payload.
type echo struct {
	grpc_testing.UnimplementedTestServiceServer

	pod string
}

// response returns the response message for one message of a stream.
func (e *echo) response(req *grpc_testing.StreamingOutputCallRequest) *grpc_testing.StreamingOutputCallResponse {
	return &grpc_testing.StreamingOutputCallResponse{Payload: payload(e.pod + " " + string(req.GetPayload().GetBody()))}
}

// payload returns a message that contains body.
func payload(body string) *grpc_testing.Payload { return &grpc_testing.Payload{Body: []byte(body)} }

// UnaryCall responds with the request's payload.
func (e *echo) UnaryCall(_ context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	return &grpc_testing.SimpleResponse{Payload: payload(e.pod + " " + string(req.GetPayload().GetBody()))}, nil
}

// StreamingOutputCall sends one response for each element of ResponseParameters in the
// request.
func (e *echo) StreamingOutputCall(
	req *grpc_testing.StreamingOutputCallRequest, s grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse],
) error {
	for range req.GetResponseParameters() {
		if err := s.Send(e.response(req)); err != nil {
			return err
		}
	}
	return nil
}

// StreamingInputCall responds with the number of bytes received.
func (e *echo) StreamingInputCall(
	s grpc.ClientStreamingServer[grpc_testing.StreamingInputCallRequest, grpc_testing.StreamingInputCallResponse],
) error {
	size := 0
	for {
		req, err := s.Recv()
		// The client has sent its last message.
		if errors.Is(err, io.EOF) {
			return s.SendAndClose(&grpc_testing.StreamingInputCallResponse{AggregatedPayloadSize: int32(size)})
		}
		if err != nil {
			return err
		}
		size += len(req.GetPayload().GetBody())
	}
}

// FullDuplexCall responds to each message with its payload.
func (e *echo) FullDuplexCall(
	s grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse],
) error {
	for {
		req, err := s.Recv()
		// The client has sent its last message.
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(e.response(req)); err != nil {
			return err
		}
	}
}

// serveGRPC runs a server of the service echo until ctx ends.
func serveGRPC(ctx context.Context, pod, addr string) error {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	grpc_testing.RegisterTestServiceServer(srv, &echo{pod: pod})
	context.AfterFunc(ctx, srv.Stop)
	return srv.Serve(lis)
}

// callGRPC makes n calls of each of the four kinds (unary and streaming) on one connection. For
// each call it prints the kind and the pod that responded, or "?" if only the requests are
// streamed, because that response does not name the pod.
func callGRPC(ctx context.Context, addr, marker string, n int) error {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := grpc_testing.NewTestServiceClient(conn)
	// Each of these functions makes one call.
	shapes := []func(context.Context, grpc_testing.TestServiceClient, string) (string, error){unary, output, input, duplex}
	// Each goroutine writes only its own element, so the lines are not mixed.
	answers := make([][]string, n)
	// The first error ends the other calls.
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(concurrency)
	for i := range n {
		all.Go(func() error {
			for _, shape := range shapes {
				answer, err := shape(ctx, client, marker)
				if err != nil {
					return err
				}
				answers[i] = append(answers[i], answer)
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	for _, a := range answers {
		fmt.Println(strings.Join(a, "\n"))
	}
	return nil
}

// messages is the number of messages that each stream sends.
const messages = 5

// unary makes a call with one request and one response. Like output and duplex, it returns the line
// that checkResponse makes of the response.
func unary(ctx context.Context, c grpc_testing.TestServiceClient, marker string) (string, error) {
	rsp, err := c.UnaryCall(ctx, &grpc_testing.SimpleRequest{Payload: payload(marker)})
	if err != nil {
		return "", err
	}
	return checkResponse("unary", marker, rsp.GetPayload())
}

// output makes a call with one request, which asks the server for a stream of messages.
func output(ctx context.Context, c grpc_testing.TestServiceClient, marker string) (answer string, err error) {
	req := &grpc_testing.StreamingOutputCallRequest{Payload: payload(marker)}
	// The server sends a message for each element. Its size does not matter.
	for range messages {
		req.ResponseParameters = append(req.GetResponseParameters(), &grpc_testing.ResponseParameters{})
	}
	s, err := c.StreamingOutputCall(ctx, req)
	// i is the number of messages so far.
	for i := 0; err == nil; i++ {
		rsp, recvErr := s.Recv()
		switch {
		// The stream must not end earlier.
		case errors.Is(recvErr, io.EOF) && i == messages:
			return answer, nil
		case recvErr != nil:
			return "", recvErr
		}
		answer, err = checkResponse("output", marker, rsp.GetPayload())
	}
	return "", err
}

// input makes a call with a stream of requests. The only response is the size of all payloads, so
// the returned line names no pod.
func input(ctx context.Context, c grpc_testing.TestServiceClient, marker string) (string, error) {
	s, err := c.StreamingInputCall(ctx)
	if err != nil {
		return "", err
	}
	for range messages {
		if err := s.Send(&grpc_testing.StreamingInputCallRequest{Payload: payload(marker)}); err != nil {
			return "", err
		}
	}
	rsp, err := s.CloseAndRecv()
	if err == nil && int(rsp.GetAggregatedPayloadSize()) != messages*len(marker) {
		err = fmt.Errorf("input: %d of %d bytes were received", rsp.GetAggregatedPayloadSize(), messages*len(marker))
	}
	return "input ?", err
}

// duplex makes a call in which both sides stream. It waits for the response to each request before it
// sends the next one.
func duplex(ctx context.Context, c grpc_testing.TestServiceClient, marker string) (answer string, err error) {
	s, err := c.FullDuplexCall(ctx)
	if err != nil {
		return "", err
	}
	for range messages {
		if err := s.Send(&grpc_testing.StreamingOutputCallRequest{Payload: payload(marker)}); err != nil {
			return "", err
		}
		rsp, err := s.Recv()
		if err != nil {
			return "", err
		}
		if answer, err = checkResponse("duplex", marker, rsp.GetPayload()); err != nil {
			return "", err
		}
	}
	// After the end of the requests, the server must end the stream without another message.
	if err := s.CloseSend(); err != nil {
		return "", err
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("duplex: %w instead of the end of the stream", err)
	}
	return answer, nil
}

// checkResponse returns the line to print for a call: its kind (shape) and the name of the pod in
// p. It returns an error unless the marker follows the name in p, a response's payload.
func checkResponse(shape, marker string, p *grpc_testing.Payload) (string, error) {
	// The server puts its pod's name in front of the payload.
	pod, rest, _ := strings.Cut(string(p.GetBody()), " ")
	if rest != marker {
		return "", fmt.Errorf("%s: unexpected response %q", shape, p.GetBody())
	}
	return shape + " " + pod, nil
}

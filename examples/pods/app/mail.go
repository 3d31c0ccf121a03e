package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"strings"
)

// serveMail runs a server of SMTP until ctx ends. It supports only the commands that a
// client needs to send a mail. In SMTP the server sends first, so a proxy must not wait for
// the client.
func serveMail(ctx context.Context, pod, addr string) error {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	// Closing the listener ends Accept with ErrClosed.
	context.AfterFunc(ctx, func() { _ = lis.Close() })
	for {
		conn, err := lis.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			_ = receiveMail(textproto.NewConn(conn), pod)
		}()
	}
}

// receiveMail serves one SMTP connection. Its greeting, and the response to a mail, contain the
// pod name.
func receiveMail(c *textproto.Conn, pod string) error {
	if err := c.PrintfLine("220 %s ready", pod); err != nil {
		return err
	}
	size := 0
	for {
		line, err := c.ReadLine()
		if err != nil {
			return err
		}
		// All other commands succeed without an effect.
		answer := "250 ok"
		switch verb, _, _ := strings.Cut(strings.ToUpper(line), " "); verb {
		case "QUIT":
			return c.PrintfLine("221 bye")
		case "DATA":
			if err := c.PrintfLine("354 go on"); err != nil {
				return err
			}
			// The mail ends with a line that contains only a dot.
			text, err := c.ReadDotBytes()
			if err != nil {
				return err
			}
			size += len(text)
			answer = fmt.Sprintf("250 %s has %d bytes: %s", pod, size, strings.Join(strings.Fields(string(text)), " "))
		}
		if err := c.PrintfLine("%s", answer); err != nil {
			return err
		}
	}
}

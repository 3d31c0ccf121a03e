package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// checkRedis verifies that redis-cli can store a value and read it.
func (r *running) checkRedis(ctx context.Context) (string, error) {
	redis := func(argv ...string) (string, error) {
		return r.runAsApp(ctx, r.client, append([]string{"redis-cli", "-h", r.redis.host(), "-p", r.redis.port()}, argv...)...)
	}
	// The commands run in this order. Each must print want.
	for _, c := range []struct {
		want string
		argv []string
	}{
		{"OK", []string{"SET", "key", encryptedMarker}},
		{encryptedMarker, []string{"GET", "key"}},
		{strconv.Itoa(len(encryptedMarker)), []string{"STRLEN", "key"}},
	} {
		out, err := redis(c.argv...)
		if err != nil {
			return "", err
		}
		if strings.TrimSpace(out) != c.want {
			return "", fmt.Errorf("redis-cli %s: %q, not %q", strings.Join(c.argv, " "), out, c.want)
		}
	}
	return "SET, GET, STRLEN", nil
}

// checkMail verifies that a mail can be sent, although the server speaks first in SMTP. It would
// fail if a proxy waited for the first bytes of the client, because the proxies wait for
// detectTimeout on a port that is not opaque, longer than any check.
func (r *running) checkMail(ctx context.Context) (string, error) {
	// curl reads the mail from a file, which the user app must be able to read.
	letter := r.path("run", "letter")
	if err := writePrivateFile(letter, "Subject: hello\r\n\r\n"+encryptedMarker+"\r\n", app); err != nil {
		return "", err
	}
	cmd := command(ctx, r.client, app, nil, "curl", "-sSv", "smtp://"+r.mail.String(),
		"--mail-from", "a@example.com", "--mail-rcpt", "b@example.com", "-T", letter)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("curl: %w\n%s", err, text)
	}
	// With -v, curl prints the lines of the server, with "<" before them. The server echoes the mail.
	for _, want := range []string{"< 220 data ready", "< 250 data has ", encryptedMarker} {
		if !strings.Contains(string(text), want) {
			return "", fmt.Errorf("no %q in\n%s", want, text)
		}
	}
	return "greeted, and a mail accepted", nil
}

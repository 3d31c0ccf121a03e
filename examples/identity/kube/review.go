package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authn "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
)

// Audience is the audience of the tokens that a [Reviewer] accepts.
const Audience = "identity.l5d.io"

// A Reviewer's limits: how many requests to the API server may run, how long a token waits until
// its request is sent, and how long a request may take.
const (
	maxReviews    = 32
	maxWait       = 2 * time.Second
	reviewTimeout = 5 * time.Second
)

// Reviewer validates the tokens of Kubernetes ServiceAccounts by requests to the API server
// (TokenReview). It is safe for concurrent use.
//
// It sends at most 32 concurrent requests. It does not cache results, so that a deleted
// ServiceAccount receives no certificate. The API server itself may cache a result for ten
// seconds.
type Reviewer struct {
	client kubernetes.Interface
	suffix string // suffix of all ServiceAccounts' names
	log    *slog.Logger
	slots  *semaphore.Weighted
}

// NewReviewer returns a Reviewer for a trust domain's names. namespace is the control plane's
// namespace, which is a part of all names.
func NewReviewer(client kubernetes.Interface, namespace, domain string, log *slog.Logger) *Reviewer {
	return &Reviewer{
		client: client, log: log, slots: semaphore.NewWeighted(maxReviews),
		suffix: ".serviceaccount.identity." + namespace + "." + domain,
	}
}

// Check returns nil if token is a valid token of the ServiceAccount in name, such as
// web.default.serviceaccount.identity.linkerd.cluster.local. It is a ca.Check.
//
// The errors carry linkerd's codes: InvalidArgument if the API server does not know the token,
// and FailedPrecondition for a token with another audience or ServiceAccount. The code is
// Unavailable if the API server does not answer, and ResourceExhausted if too many tokens wait
// for a request to it.
func (r *Reviewer) Check(ctx context.Context, name string, token []byte) error {
	account, ok := strings.CutSuffix(name, r.suffix)
	// A ServiceAccount and its namespace are two labels.
	if !ok || strings.Count(account, ".") != 1 {
		return status.Errorf(codes.FailedPrecondition, "%q is not certified: must be SERVICEACCOUNT.NAMESPACE%s", name, r.suffix)
	}
	answer, err := r.review(ctx, token)
	if err != nil {
		return err
	}
	owner, err := r.owner(&answer.Status, token)
	if err != nil {
		return err
	}
	// The token must be that of the account in the name. Otherwise, any pod could take any identity.
	if owner != name {
		return status.Errorf(codes.FailedPrecondition, "%q is not certified: the token is of %q", name, owner)
	}
	return nil
}

// review sends a TokenReview to the API server and returns its answer.
func (r *Reviewer) review(ctx context.Context, token []byte) (*authn.TokenReview, error) {
	wait, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	// The wait ends with an error, so that clients retry instead of piling up.
	if r.slots.Acquire(wait, 1) != nil {
		return nil, status.Error(codes.ResourceExhausted, "too many tokens are being reviewed")
	}
	defer r.slots.Release(1)
	ctx, cancel = context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	answer, err := r.client.AuthenticationV1().TokenReviews().Create(ctx, &authn.TokenReview{
		Spec: authn.TokenReviewSpec{Token: string(token), Audiences: []string{Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		// The API server may repeat the token in its error, which must not appear in the log.
		r.log.Error("the API server did not review a token", "err", redacted(err.Error(), token))
		// Missing rights are a mistake of the operator, and retrying does not help.
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			return nil, status.Error(codes.Internal, "the authority may not review tokens")
		}
		return nil, status.Error(codes.Unavailable, "the API server does not review tokens now")
	}
	return answer, nil
}

// owner returns the name of the ServiceAccount to which token belongs, according to the
// status s. It returns an error if the token is invalid or is for another audience.
func (r *Reviewer) owner(s *authn.TokenReviewStatus, token []byte) (string, error) {
	// The order matters: an error says most about the token.
	switch {
	case s.Error != "":
		return "", status.Errorf(codes.InvalidArgument, "the token is invalid: %s", redacted(s.Error, token))
	case !s.Authenticated:
		return "", status.Error(codes.FailedPrecondition, "the token is not authenticated")
	case !slices.Contains(s.Audiences, Audience):
		return "", status.Errorf(codes.FailedPrecondition, "the token is for the audiences %q, must be for %s", s.Audiences, Audience)
	}
	// The user has the form system:serviceaccount:NAMESPACE:NAME.
	parts := strings.Split(s.User.Username, ":")
	if len(parts) != 4 || parts[0] != "system" || parts[1] != "serviceaccount" ||
		validation.IsDNS1123Label(parts[2]) != nil || validation.IsDNS1123Label(parts[3]) != nil {
		return "", status.Errorf(codes.FailedPrecondition, "the token is of the user %q, must be of a service account", s.User.Username)
	}
	return parts[3] + "." + parts[2] + r.suffix, nil
}

// maxReason is how much of the API server's text an error contains.
const maxReason = 300

// redacted returns text with "[redacted]" instead of token, and instead of each part of at least
// 8 bytes between the dots of token. The result is at most maxReason characters long.
func redacted(text string, token []byte) string {
	// Short parts are no secrets, and replacing them would garble the text.
	for _, secret := range append([]string{string(token)}, strings.Split(string(token), ".")...) {
		if len(secret) >= 8 {
			text = strings.ReplaceAll(text, secret, "[redacted]")
		}
	}
	return fmt.Sprintf("%.*s", maxReason, text)
}

// Upstream's service, route and cloud-node-lifecycle controllers, as a cloud-controller-manager runs them, over
// a cloud that a test serves on a Unix socket: the same cloud that Manifold's controllers are tested with.
//
// A connection carries one request and one answer, each a JSON object. A request has "call" and what the call
// is about; an answer has what was asked for, or "error" with "kind" and "retryAfterMs".
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/api"
	"k8s.io/cloud-provider/controllers/nodelifecycle"
	"k8s.io/cloud-provider/controllers/route"
	"k8s.io/cloud-provider/controllers/service"
	"k8s.io/component-base/featuregate"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	// The route controller asks for a gate that is known with this.
	_ "k8s.io/controller-manager/pkg/features/register"
)

const (
	clusterName = "kubernetes"
	// The API server is the test's own.
	qps, burst = 5000, 5000
)

var (
	kubeconfig  = flag.String("kubeconfig", "", "The cluster.")
	socket      = flag.String("cloud", "", "The cloud's Unix socket.")
	clusterCIDR = flag.String("cluster-cidr", "10.200.0.0/16", "The range of pods.")
	nodePeriod  = flag.Duration("node-monitor-period", time.Second, "How often nodes are read.")
	routePeriod = flag.Duration("route-reconciliation-period", time.Second, "How often routes are reconciled.")
	workers     = flag.Int("concurrent-service-syncs", 5, "How many Services are worked on at once.")
)

// cloud asks the test for everything.
type cloud struct{ socket string }

type request struct {
	Call     string      `json:"call"`
	Service  *v1.Service `json:"service,omitempty"`
	Nodes    []*v1.Node  `json:"nodes,omitempty"`
	Route    *routeOf    `json:"route,omitempty"`
	NameHint string      `json:"nameHint,omitempty"`
}

type routeOf struct {
	Name             string           `json:"name"`
	TargetNode       string           `json:"targetNode"`
	CompareAddresses bool             `json:"compareAddresses"`
	TargetAddresses  []v1.NodeAddress `json:"targetAddresses,omitempty"`
	DestinationCIDR  string           `json:"destinationCidr"`
	Blackhole        bool             `json:"blackhole"`
}

type answer struct {
	Error        string                 `json:"error"`
	Kind         string                 `json:"kind"`
	RetryAfterMs int64                  `json:"retryAfterMs"`
	Yes          bool                   `json:"yes"`
	Status       *v1.LoadBalancerStatus `json:"status"`
	Routes       []routeOf              `json:"routes"`
}

// ask sends a request; an answer that refuses it is an error of the kind that upstream distinguishes.
func (c cloud) ask(ctx context.Context, question request) (*answer, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if err := json.NewEncoder(connection).Encode(question); err != nil {
		return nil, err
	}
	var reply answer
	if err := json.NewDecoder(connection).Decode(&reply); err != nil {
		return nil, err
	}
	switch {
	case reply.Error == "":
		return &reply, nil
	case reply.RetryAfterMs > 0:
		return nil, api.NewRetryError(reply.Error, time.Duration(reply.RetryAfterMs)*time.Millisecond)
	case reply.Kind == "ImplementedElsewhere":
		return nil, cloudprovider.ImplementedElsewhere
	case reply.Kind == "InstanceNotFound":
		return nil, cloudprovider.InstanceNotFound
	default:
		return nil, errors.New(reply.Error)
	}
}

func (cloud) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}
func (c cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool)                { return c, true }
func (cloud) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (c cloud) InstancesV2() (cloudprovider.InstancesV2, bool)                  { return c, true }
func (cloud) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (cloud) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (c cloud) Routes() (cloudprovider.Routes, bool)                            { return c, true }
func (cloud) ProviderName() string                                              { return "reference" }
func (cloud) HasClusterID() bool                                                { return true }

func (c cloud) GetLoadBalancer(ctx context.Context, _ string, service *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	reply, err := c.ask(ctx, request{Call: "GetLoadBalancer", Service: service})
	if err != nil {
		return nil, false, err
	}
	return reply.Status, reply.Status != nil, nil
}

func (c cloud) GetLoadBalancerName(_ context.Context, _ string, service *v1.Service) string {
	return cloudprovider.DefaultLoadBalancerName(service)
}

func (c cloud) EnsureLoadBalancer(ctx context.Context, _ string, service *v1.Service, nodes []*v1.Node) (*v1.LoadBalancerStatus, error) {
	reply, err := c.ask(ctx, request{Call: "EnsureLoadBalancer", Service: service, Nodes: nodes})
	if err != nil {
		return nil, err
	}
	return reply.Status, nil
}

func (c cloud) UpdateLoadBalancer(ctx context.Context, _ string, service *v1.Service, nodes []*v1.Node) error {
	_, err := c.ask(ctx, request{Call: "UpdateLoadBalancer", Service: service, Nodes: nodes})
	return err
}

func (c cloud) EnsureLoadBalancerDeleted(ctx context.Context, _ string, service *v1.Service) error {
	_, err := c.ask(ctx, request{Call: "EnsureLoadBalancerDeleted", Service: service})
	return err
}

func (c cloud) InstanceExists(ctx context.Context, node *v1.Node) (bool, error) {
	reply, err := c.ask(ctx, request{Call: "InstanceExists", Nodes: []*v1.Node{node}})
	if err != nil {
		return false, err
	}
	return reply.Yes, nil
}

func (c cloud) InstanceShutdown(ctx context.Context, node *v1.Node) (bool, error) {
	reply, err := c.ask(ctx, request{Call: "InstanceShutdown", Nodes: []*v1.Node{node}})
	if err != nil {
		return false, err
	}
	return reply.Yes, nil
}

// None of the three controllers asks for it.
func (cloud) InstanceMetadata(context.Context, *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	return nil, cloudprovider.NotImplemented
}

func (c cloud) ListRoutes(ctx context.Context, _ string) ([]*cloudprovider.Route, error) {
	reply, err := c.ask(ctx, request{Call: "ListRoutes"})
	if err != nil {
		return nil, err
	}
	routes := []*cloudprovider.Route{}
	for _, one := range reply.Routes {
		routes = append(routes, &cloudprovider.Route{
			Name:                one.Name,
			TargetNode:          types.NodeName(one.TargetNode),
			EnableNodeAddresses: one.CompareAddresses,
			TargetNodeAddresses: one.TargetAddresses,
			DestinationCIDR:     one.DestinationCIDR,
			Blackhole:           one.Blackhole,
		})
	}
	return routes, nil
}

func shown(route *cloudprovider.Route) *routeOf {
	return &routeOf{
		Name:             route.Name,
		TargetNode:       string(route.TargetNode),
		CompareAddresses: route.EnableNodeAddresses,
		TargetAddresses:  route.TargetNodeAddresses,
		DestinationCIDR:  route.DestinationCIDR,
		Blackhole:        route.Blackhole,
	}
}

func (c cloud) CreateRoute(ctx context.Context, _ string, nameHint string, route *cloudprovider.Route) error {
	_, err := c.ask(ctx, request{Call: "CreateRoute", Route: shown(route), NameHint: nameHint})
	return err
}

func (c cloud) DeleteRoute(ctx context.Context, _ string, route *cloudprovider.Route) error {
	_, err := c.ask(ctx, request{Call: "DeleteRoute", Route: shown(route)})
	return err
}

func run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = qps, burst
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	_, cidr, err := net.ParseCIDR(*clusterCIDR)
	if err != nil {
		return fmt.Errorf("--cluster-cidr: %w", err)
	}
	provider := cloud{socket: *socket}
	factory := informers.NewSharedInformerFactory(client, 0)
	services, nodes := factory.Core().V1().Services(), factory.Core().V1().Nodes()
	metrics := controllersmetrics.NewControllerManagerMetrics("cloud-controllers")

	balancers, err := service.New(provider, client, services, nodes, clusterName, featuregate.NewFeatureGate())
	if err != nil {
		return err
	}
	router, err := route.New(provider, client, nodes, clusterName, []*net.IPNet{cidr})
	if err != nil {
		return err
	}
	lifecycle, err := nodelifecycle.NewCloudNodeLifecycleController(nodes, client, provider, *nodePeriod)
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	go balancers.Run(ctx, *workers, metrics)
	go router.Run(ctx, *routePeriod, metrics)
	go lifecycle.Run(ctx, metrics)
	<-ctx.Done()
	return nil
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

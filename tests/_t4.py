import torch, traceback, sys, time
from tests.harness.sizes import check_sizes
from tests.harness.traced import trace
from tests.trace.test_sizes import *
only=sys.argv[1:]
P={}
def p(n,f,m=matrix,sy=BOTH): P[n]=(f,m,sy)
p('vmap', lambda x: torch.vmap(lambda r: r*2+r.sum())(x))
p('vmap_mm', lambda x: torch.vmap(lambda r: r@r)(x))
p('grad', lambda x: torch.func.grad(lambda y: (y*y).sum())(x))
p('mask', lambda x: masked(x))
def masked(x): y=x*1; y[x>0]=0; return y
class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return x*2
    @staticmethod
    def backward(ctx,g): return g*2
p('fn', lambda x: Fn.apply(x))
p('ckpt', lambda x: torch.utils.checkpoint.checkpoint(lambda y: y*2, x, use_reentrant=False))
def ac(x):
    with torch.autocast('cpu'): return x@x.t()
p('autocast', ac)
p('inf', lambda x: inf(x))
def inf(x):
    with torch.inference_mode(): return x.reshape(-1)@x.flatten()
def where_cmp(x): return torch.where(torch.arange(x.size(1))<x.size(1)//2, x, 0)
p('wherecmp', where_cmp)
p('maskscalar', lambda x: x.masked_fill(torch.ones(x.size(0),1,dtype=torch.bool), x.size(1)))
p('iadd', lambda x: torch.zeros(3,x.size(1)).index_add_(0, torch.zeros(x.size(0),dtype=torch.long), x))
p('zip', lambda x: [a for a in (x.shape[0]*x.shape[1], x)][1])
p('max_size', lambda x: x[: max(x.size(0),2)]*2)
p('min_size', lambda x: x[:, :min(x.size(1),4)]*2)
p('sumsizes', lambda x: x.new_ones(x.size(0)+x.size(1), x.size(0)*2-1))
p('mul_t', lambda x: x*torch.full((x.size(1),),2.0)[None])
p('index2', lambda x: x[torch.arange(x.size(0)), torch.arange(x.size(0))*0])
p('stride', lambda x: x.t() if x.stride(0)==x.size(1) else x)
p('like', lambda x: torch.empty_like(x.t()).zero_()+x.t())
p('clone_t', lambda x: x.t().clone())
p('add_perm', lambda x: x.permute(1,0,2)+x.permute(1,0,2), rows)
p('add_perm2', lambda x: x.permute(2,1,0)+1, rows)
p('catperm', lambda x: torch.cat([x.permute(2,1,0),x.permute(2,1,0)],0), rows)
p('pos', lambda x: x + torch.arange(x.size(1)).float()[:,None]/10, rows)
p('rope', lambda x: torch.cat([-x[...,4:],x[...,:4]],-1)*torch.outer(torch.arange(x.size(1)).float(), torch.ones(8)).cos(), rows)
p('kvc', lambda x,c: wr(x,c), lambda b,s:[torch.randn(b,s,8),torch.zeros(b,64,8)],{0:(0,1),1:(0,)})
def wr(x,c):
    c[:, :x.size(1)]=x
    return c[:, :x.size(1)].sum(1)
p('hs', lambda x: F.hardswish(x).sum(-1,keepdim=True)+x)
p('padc', lambda x: F.pad(x,(0, 8 - x.size(1)%8)))
p('roundup', lambda x: F.pad(x,(0,(x.size(1)+7)//8*8-x.size(1)+1)))
p('conv1dsame', lambda x: F.conv1d(x.transpose(1,2), torch.ones(4,8,5), padding='same'), rows)
p('ctr', lambda x: F.conv_transpose1d(x.transpose(1,2), torch.ones(8,4,4), stride=2, padding=1), rows)
p('unet', lambda x: F.interpolate(F.max_pool1d(x.transpose(1,2),2), scale_factor=2), rows)
for n,(f,m,sy) in P.items():
    if only and n not in only: continue
    try:
        torch.manual_seed(0)
        t,g=check_sizes(f,m,sy,SIZES,CLOSE)
        print(n,'ok', len(t.aten_graph.nodes), [(str(e).replace('Leaf(index=','s').replace(')',''),x) for e,x in g])
    except NeedsFixedSize as e: print(n,'FIXED',str(e)[:200]); only and traceback.print_exc()
    except Unsupported as e: print(n,'UNSUPP',str(e)[:150])
    except Exception as e: print(n,'ERR',type(e).__name__, str(e)[:400]); only and traceback.print_exc()
